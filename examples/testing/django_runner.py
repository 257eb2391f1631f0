"""Django's test runner with a broker: TEST_RUNNER = "django_runner.BrokerRunner" in the tests' settings.

The tests find the broker's address in `settings.BROKER_URL`.
"""

from django.conf import settings
from django.test.runner import DiscoverRunner

from amqp10broker.testing import running


class BrokerRunner(DiscoverRunner):
    def setup_test_environment(self, **kwargs):
        super().setup_test_environment(**kwargs)
        self._running = running()
        settings.BROKER_URL = self._running.__enter__().url

    def teardown_test_environment(self, **kwargs):
        self._running.__exit__(None, None, None)
        super().teardown_test_environment(**kwargs)
