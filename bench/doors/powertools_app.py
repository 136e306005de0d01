"""FastAPI, with the idempotency utility of aws-lambda-powertools on Redis around the work.

The utility blocks, so the function is a plain one, which FastAPI runs in its pool of threads.
"""

import os
from typing import Annotated, Any

import redis
from fastapi import Depends, FastAPI, Header, HTTPException, Request

from bench.doors.checking import genuine, parsed
from bench.doors.stores import STORE_VARIABLE
from bench.load import CALLERS
from bench.peers import load, stand_in_for_boto3

stand_in_for_boto3()
idempotency = load("aws_lambda_powertools.utilities.idempotency")
layers = load("aws_lambda_powertools.utilities.idempotency.persistence.redis")

app = FastAPI()
server = redis.Redis.from_url(
    os.environ[STORE_VARIABLE], decode_responses=True, max_connections=2 * CALLERS
)


class Context:
    def get_remaining_time_in_millis(self) -> int:
        return 30_000


config = idempotency.IdempotencyConfig(event_key_jmespath="delivery_id")
config.register_lambda_context(Context())


@idempotency.idempotent_function(
    data_keyword_argument="delivery",
    persistence_store=layers.RedisCachePersistenceLayer(client=server),
    config=config,
)
def take(delivery: dict[str, Any]) -> dict[str, str]:
    return {"ok": delivery["event"]["repository"]["full_name"]}


async def raw_body(request: Request) -> bytes:
    return await request.body()


@app.post("/hook", status_code=202)
def hook(
    body: Annotated[bytes, Depends(raw_body)],
    x_hub_signature_256: Annotated[str, Header()],
    x_github_delivery: Annotated[str, Header()],
) -> dict[str, str]:
    if not genuine(body, x_hub_signature_256):
        raise HTTPException(401)
    told: dict[str, str] = take(delivery={"delivery_id": x_github_delivery, "event": parsed(body)})
    return told
