"""The Helm chart's generated parts: `python -m helm.generate` writes them from the settings model and stack/.

What is made: values.schema.json, the settings in values.yaml, README.md, files/model.yaml, files/rules.yml
and files/dashboards/. A test compares them with what would be made, so a setting that changes changes the
chart.
"""
