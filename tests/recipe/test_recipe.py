"""test_recipe.py MANTOU [NAME...]: runs the tests of this folder's files, or of those named."""
import importlib
import sys

import recipe

for name in sys.argv[2:] or ("average", "best", "factors", "names", "optimizers", "settings", "streams", "watch"):
    importlib.import_module(name)
recipe.main()
