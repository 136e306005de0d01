"""A payment service that charges a card once, however often the client asks.

Run it with `make serve`, then send the same request twice:

    curl -i -X POST localhost:8788/payments -H 'Idempotency-Key: order-7' \
         -H 'Content-Type: application/json' -d '{"amount": 700, "currency": "EUR"}'

The second answer is the first one, with `Idempotent-Replayed: true`. Another amount under the
same key is refused with 409, and the answer says that `/amount` differs.
"""

from __future__ import annotations

import os
import uuid

from fastapi import FastAPI, Response
from pydantic import BaseModel, Field

import towline

app = FastAPI(title="Payments")
app.add_middleware(
    towline.IdempotencyMiddleware,
    store_url=os.environ.get("PAYMENTS_STORE_URL", "sqlite:///payments.db"),
    required=True,
)


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
