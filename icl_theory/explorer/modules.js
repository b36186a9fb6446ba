// Modules in one file. `explorer.define` gives a module its name, and the module is run
// when it is first required. The name "./x" means the module x of the same family.
const explorer = (() => {
  const bodies = {},
    loaded = {};
  function load(name) {
    if (!(name in loaded)) {
      const module = { exports: {} };
      const folder = name.includes("/") ? name.slice(0, name.lastIndexOf("/") + 1) : "";
      loaded[name] = module;
      bodies[name](module, (other) =>
        load(other.startsWith("./") ? folder + other.slice(2) : other),
      );
    }
    return loaded[name].exports;
  }
  return {
    define: (name, body) => {
      bodies[name] = body;
    },
    require: load,
  };
})();
