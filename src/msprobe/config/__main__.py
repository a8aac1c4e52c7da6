"""Prints the JSON Schema of config.json: python -m msprobe.config > src/msprobe/config.schema.json"""

import json

from msprobe.config.loading import json_schema

print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
