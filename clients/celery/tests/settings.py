"""The Django project of the tests."""

import os

SECRET_KEY = "-"
INSTALLED_APPS = ["django_celery_beat", "jobs"]
NAME = os.environ.get("DATABASE", ":memory:")
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": NAME, "OPTIONS": {"timeout": 20}}}
USE_TZ = True
RLOCK = {"URL": os.environ["LOCKS"]} if "LOCKS" in os.environ else {}
