"""Two softmax heads that debias one step of gradient descent."""
