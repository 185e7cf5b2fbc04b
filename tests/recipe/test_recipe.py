"""test_recipe.py MANTOU: runs the tests of this folder's files."""
import best  # noqa: F401
import recipe

recipe.main()
