"""The page /docs, which shows the OpenAPI document and can call every route of it."""
