import pytest

pytest.register_assert_rewrite("protocol.questions")
