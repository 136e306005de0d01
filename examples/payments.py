"""A payment service that charges a card once, however often the client asks.

Run it with `make serve`, then send the same request twice, the second time with a renewed token:

    for token in ann-monday ann-tuesday; do
        curl -i -X POST localhost:8788/payments -H "Authorization: Bearer $token" \
             -H 'Idempotency-Key: order-7' -H 'Content-Type: application/json' \
             -d '{"amount": 700, "currency": "EUR"}'
    done

The second answer is the first one, with `Idempotent-Replayed: true`: a key belongs to the
authenticated user, not to the token. Another amount under the same key is refused with 409, and
the answer says that `/amount` differs. The same key sent by Bob (`bob-monday`) is another key.
"""

from __future__ import annotations

import os
import uuid

from fastapi import FastAPI, Response
from pydantic import BaseModel, Field
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection

import towline

TOKENS = {"ann-monday": "ann", "ann-tuesday": "ann", "bob-monday": "bob"}


class Tokens(AuthenticationBackend):
    """Here a token would be verified."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        token = conn.headers.get("Authorization", "").removeprefix("Bearer ")
        name = TOKENS.get(token)
        return (AuthCredentials(["pay"]), SimpleUser(name)) if name else None


app = FastAPI(title="Payments")
app.add_middleware(
    towline.IdempotencyMiddleware,
    store_url=os.environ.get("PAYMENTS_STORE_URL", "sqlite:///payments.db"),
    required=True,
)
app.add_middleware(AuthenticationMiddleware, backend=Tokens())  # the last one added runs first


class Order(BaseModel):
    amount: int = Field(gt=0, description="in cents")
    currency: str = Field(pattern="^[A-Z]{3}$")


class Payment(Order):
    id: str


payments: list[Payment] = []


@app.post("/payments", status_code=201)
async def pay(order: Order, response: Response) -> Payment:
    """Here a card would be charged, which must not happen twice."""
    payment = Payment(id=uuid.uuid4().hex, amount=order.amount, currency=order.currency)
    payments.append(payment)
    response.headers["Location"] = f"/payments/{payment.id}"
    return payment


@app.get("/payments")
async def list_payments() -> list[Payment]:
    return payments
