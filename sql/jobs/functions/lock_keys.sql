-- Lock keys of job runs: `{function}:{tenant}:{grain}[:{entity_hash}]`. Grains are periods of UTC, whatever the time
-- zone of the caller. These functions bind their names when they are created, so they need no search_path and can be
-- inlined.

create or replace function jobs.grain_length(p_grain text)
returns interval
language sql
immutable
parallel safe
return case p_grain
           when 'day' then interval '24 hours'
           when 'hour' then interval '1 hour'
           when '5min' then interval '5 minutes'
       end;
comment on function jobs.grain_length(text) is
    'Returns the length of a grain. A day is 24 hours, because the length of a calendar day depends on the time '
    'zone.';
revoke all on function jobs.grain_length(text) from public;
grant execute on function jobs.grain_length(text) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.grain_start(p_grain text, p_at timestamptz)
returns timestamptz
language sql
immutable
parallel safe
return date_bin(jobs.grain_length(p_grain), p_at, timestamptz '2000-01-01 00:00:00+00');
comment on function jobs.grain_start(text, timestamptz) is
    'Returns the start of the grain that contains p_at, in UTC.';
revoke all on function jobs.grain_start(text, timestamptz) from public;
grant execute on function jobs.grain_start(text, timestamptz) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.grain_overlaps(
    p_grain text, p_grain_start timestamptz, p_since timestamptz, p_until timestamptz)
returns boolean
language sql
stable
parallel safe
-- The longest grain is a day, so no older grain can overlap. This term and the next can use an index on the start.
return p_grain_start > p_since - interval '24 hours'
   and p_grain_start < p_until
   and p_grain_start + jobs.grain_length(p_grain) > p_since;
comment on function jobs.grain_overlaps(text, timestamptz, timestamptz, timestamptz) is
    'Returns whether the grain that starts at p_grain_start overlaps the time from p_since to p_until.';
revoke all on function jobs.grain_overlaps(text, timestamptz, timestamptz, timestamptz) from public;

create or replace function jobs.grain_label(p_grain text, p_at timestamptz)
returns text
language sql
stable
parallel safe
return to_char(jobs.grain_start(p_grain, p_at) at time zone 'UTC',
               case p_grain
                   when 'day' then 'YYYY-MM-DD'
                   when 'hour' then 'YYYY-MM-DD"T"HH24'
                   else 'YYYY-MM-DD"T"HH24:MI'
               end);
comment on function jobs.grain_label(text, timestamptz) is
    'Returns the name of the grain that contains p_at: 2026-02-06, 2026-02-06T14 or 2026-02-06T14:05.';
revoke all on function jobs.grain_label(text, timestamptz) from public;
grant execute on function jobs.grain_label(text, timestamptz) to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.lock_key(
    p_function text, p_tenant_id uuid, p_grain text, p_at timestamptz, p_entity_hash text default null)
returns text
language sql
stable
parallel safe
return concat_ws(':', p_function, p_tenant_id, jobs.grain_label(p_grain, p_at), p_entity_hash);
comment on function jobs.lock_key(text, uuid, text, timestamptz, text) is
    'Returns the lock key of a function for the grain that contains p_at, with the entity hash where one is passed.';
revoke all on function jobs.lock_key(text, uuid, text, timestamptz, text) from public;
grant execute on function
    jobs.lock_key(text, uuid, text, timestamptz, text)
    to postrider_app, postrider_worker, postrider_read;
