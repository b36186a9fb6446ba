"""One to six layers of linear attention on data with any covariance."""
