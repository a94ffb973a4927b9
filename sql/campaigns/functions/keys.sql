-- Idempotency keys of items, and the status word for success on each channel.

create or replace function execution.key_time(p_at timestamptz)
returns text
language sql
stable
parallel safe
return coalesce(to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '-');
comment on function execution.key_time(timestamptz) is
    'Formats a time as it stands in an idempotency key: RFC 3339 in UTC with microseconds, or a dash for null.';
revoke all on function execution.key_time(timestamptz) from public;
grant execute on function execution.key_time(timestamptz) to postrider_app, postrider_worker, postrider_read;

create or replace function execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamptz)
returns text
language sql
stable
parallel safe
return encode(sha256(convert_to(
    case p_key_part
        when 'message' then 'message|' || p_item_id::text
        else p_run_id::text || '|' || p_item_id::text || '|' || p_key_part || '|' || execution.key_time(p_scheduled_for)
    end, 'UTF8')), 'hex');
comment on function execution.outbox_key(uuid, uuid, text, timestamptz) is
    'Computes the idempotency key of an item. That of a single message follows from its id, whatever run it is in. postrider_model::key '
    'computes the same keys, and a test compares them.';
revoke all on function execution.outbox_key(uuid, uuid, text, timestamptz) from public;
grant execute on function
    execution.outbox_key(uuid, uuid, text, timestamptz)
    to postrider_app, postrider_worker, postrider_read;

create or replace function execution.success_of(p_channel text)
returns text
language sql
immutable
parallel safe
return case p_channel when 'email' then 'sent' when 'voice' then 'called' when 'social' then 'posted' end;
comment on function execution.success_of(text) is
    'Returns the status of a successful item on a channel: sent, called or posted.';
revoke all on function execution.success_of(text) from public;
grant execute on function execution.success_of(text) to postrider_app, postrider_worker, postrider_read;
