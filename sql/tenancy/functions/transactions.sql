-- Functions that every area calls about its transaction: the settings of the transaction, and the hint that its commit sends.

create or replace function tenancy.limit_idle_time(p_limit text default '30s')
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', p_limit, true);
    end if;
end
$$;
revoke all on function tenancy.limit_idle_time(text) from public;
comment on function tenancy.limit_idle_time(text) is
    'Limits idle time inside the current transaction, unless the login has its own limit. Functions that lock rows call '
    'it, so that the server ends the transaction of a client that hangs and blocks others.';

create or replace function tenancy.require_durable_commit()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;
revoke all on function tenancy.require_durable_commit() from public;
comment on function tenancy.require_durable_commit() is
    'Makes the commit of the current transaction survive a crash, whatever synchronous_commit of the login is. Functions '
    'call it whose record decides whether a provider may be called.';

create or replace function tenancy.send_hint(p_channel text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_notify(p_channel, '');
end
$$;
revoke all on function tenancy.send_hint(text) from public;
comment on function tenancy.send_hint(text) is
    'Wakes the processes that listen on a channel, once the current transaction commits. The only function that notifies, '
    'so that an installation on which NOTIFY does not reach its listeners can replace it; every listener also polls.';
