// Accounts on Express with emmett: an account is a stream in PostgreSQL, and a document that its events keep up to date.
//
// ONEFOLD_SINK_DATABASE=url ONEFOLD_HTTP_PORT=port node side.js

import { CommandHandler, EmmettError, isExpectedVersionConflictError, projections } from '@event-driven-io/emmett';
import { getPostgreSQLEventStore, pongoSingleStreamProjection } from '@event-driven-io/emmett-postgresql';
import { pongoClient } from '@event-driven-io/pongo';
import express from 'express';

const evolve = (account, { type, data }) => {
  switch (type) {
    case 'AccountOpened':
      return { account_id: data.account_id, balance_cents: 0, sequence: 1 };
    case 'AccountCharged':
      return {
        ...account,
        balance_cents: account.balance_cents + data.amount_cents,
        sequence: account.sequence + 1,
      };
  }
};

const open = (account_id) => (account) => {
  if (account) throw new EmmettError({ errorCode: 409, message: 'already open' });
  return { type: 'AccountOpened', data: { account_id } };
};

const charge = (amount_cents) => (account) => {
  if (!account) throw new EmmettError({ errorCode: 404, message: 'unknown' });
  return { type: 'AccountCharged', data: { amount_cents } };
};

const database = process.env.ONEFOLD_SINK_DATABASE.replace('+psycopg', '');
const documents = pongoSingleStreamProjection({
  collectionName: 'accounts',
  canHandle: ['AccountOpened', 'AccountCharged'],
  evolve,
});
const store = getPostgreSQLEventStore(database, { projections: projections.inline([documents]) });
await store.schema.migrate();
const accounts = pongoClient(database).db().collection('accounts');
const handle = CommandHandler({ evolve, initialState: () => null });

const api = express();
api.use(express.json());

const decided = (command) => async (request, response) => {
  const { nextExpectedStreamVersion } = await handle(store, `account-${request.params.id}`, command(request));
  response.status(201).json({ sequence: Number(nextExpectedStreamVersion) });
};

api.get('/readyz', (_, response) => response.json({}));
api.post('/accounts/:id', decided((request) => open(request.params.id)));
api.post('/accounts/:id/charges', decided((request) => charge(request.body.amount_cents)));
api.get('/accounts/:id', async (request, response) => {
  const account = await accounts.findOne({ _id: `account-${request.params.id}` });
  if (!account) return response.sendStatus(404);
  const { account_id, balance_cents, sequence } = account;
  response.json({ account_id, balance_cents, sequence });
});
api.use((error, _request, response, _next) => {
  const status = isExpectedVersionConflictError(error) ? 409 : error.errorCode ?? 500;
  response.status(status).json({ detail: error.message });
});

api.listen(Number(process.env.ONEFOLD_HTTP_PORT), '127.0.0.1');
