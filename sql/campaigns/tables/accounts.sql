-- The shared state of provider accounts: rate limit, daily count, requested waits and circuit breaker.

create table execution.account_states (
    tenant_id          uuid             not null,
    account_id         uuid             not null,
    -- Call tokens in the bucket. Below zero: tokens that were granted up to a second ahead, to callers that wait.
    tokens             double precision not null default 0,
    refilled_at        timestamptz,
    day                date,
    used_today         bigint           not null default 0,
    -- Calls of the newest thirteen twelfths of the quota's period, the newest first, and the number of the newest twelfth.
    quota_counts       integer[],
    quota_slot         bigint,
    -- No look-up before then.
    next_look_up_at    timestamptz,
    -- The provider asked for no calls until then (Retry-After).
    wait_until         timestamptz,
    wait_reason        text,
    -- The circuit is open until then, and half open after that until a call is answered. Null: closed.
    circuit_open_until timestamptz,
    circuit_reason     text,
    circuit_openings   integer          not null default 0,
    -- While the circuit is half open: the send job whose call is the probe (null: a reply's call is), and the time at which the
    -- probe expires.
    probe_job_id       uuid,
    probe_until        timestamptz,
    primary key (tenant_id, account_id),
    constraint account_states_belong_to_an_account
        foreign key (tenant_id, account_id) references tenancy.provider_accounts (tenant_id, id) on delete cascade
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
comment on table execution.account_states is
    'The state of a provider account that all processes share: call tokens, calls of the day, the wait that the '
    'provider asked for, and the circuit breaker. The first call creates the row; it is deleted with its account.';

create index account_states_circuits on execution.account_states (circuit_open_until)
    where circuit_open_until is not null;
