"""test_recipe.py MANTOU: runs the tests of this folder's files."""
import average  # noqa: F401
import best  # noqa: F401
import optimizers  # noqa: F401
import recipe
import settings  # noqa: F401

recipe.main()
