-- Scheduled jobs begin with the words of their lock keys: `{function}:{tenant}:{grain}[:{entity_hash}]`.
-- Safe beside running workers: it adds a schema and touches no other.

create schema jobs;
grant usage on schema jobs to postrider_app, postrider_worker, postrider_read;

-- A new id, ordered by time, as those are that the programs make: UUIDv7.
create function jobs.new_id()
returns uuid
language sql
volatile
parallel safe
return encode(
    set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                            placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                            from 1 for 6),
                    52, 1),
            53, 1),
    'hex')::uuid;

-- Who stands still in the middle of a step of this schema holds up others, so nobody may do so for long, unless their login says how long.
create function jobs.keep_moving()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', '15s', true);
    end if;
end
$$;

-- How long a grain is. In hours, because a day of the calendar depends on who asks.
create function jobs.grain_length(p_grain text)
returns interval
language sql
immutable
parallel safe
return case p_grain
           when 'day' then interval '24 hours'
           when 'hour' then interval '1 hour'
           when '5min' then interval '5 minutes'
       end;

-- These bind their names when they are made, so they need no search_path of their own, and are planned as a part of whatever calls them.
--
-- When the grain began that this moment lies in. Grains are those of UTC, wherever the caller is.
create function jobs.grain_start(p_grain text, p_at timestamptz)
returns timestamptz
language sql
immutable
parallel safe
return date_bin(jobs.grain_length(p_grain), p_at, timestamptz '2000-01-01 00:00:00+00');

-- What the grain is called: `2026-02-06`, `2026-02-06T14`, `2026-02-06T14:05`.
create function jobs.grain_label(p_grain text, p_at timestamptz)
returns text
language sql
stable
parallel safe
return to_char(jobs.grain_start(p_grain, p_at) at time zone 'UTC',
               case p_grain when 'day' then 'YYYY-MM-DD' when 'hour' then 'YYYY-MM-DD"T"HH24' else 'YYYY-MM-DD"T"HH24:MI' end);

create function jobs.lock_key(p_function text, p_tenant_id uuid, p_grain text, p_at timestamptz, p_entity_hash text default null)
returns text
language sql
stable
parallel safe
return concat_ws(':', p_function, p_tenant_id, jobs.grain_label(p_grain, p_at), p_entity_hash);

revoke all on all functions in schema jobs from public;
grant execute on function
    jobs.grain_length(text),
    jobs.grain_start(text, timestamptz),
    jobs.grain_label(text, timestamptz),
    jobs.lock_key(text, uuid, text, timestamptz, text)
    to postrider_app, postrider_worker, postrider_read;
