-- The helpers that the other functions of schema jobs share, and the right to use the schema.
-- Applied before tables.sql, because table defaults call jobs.new_id().

grant usage on schema jobs to postrider_app, postrider_worker, postrider_read;

create or replace function jobs.new_id()
returns uuid
language sql
volatile
parallel safe
return encode(
    set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
                            placing substring(
                                int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                            from 1 for 6),
                    52, 1),
            53, 1),
    'hex')::uuid;
comment on function jobs.new_id() is
    'Returns a new UUIDv7. Ids sort by creation time, like the ids that the Rust code makes.';
revoke all on function jobs.new_id() from public;

create or replace function jobs.audit(p_tenant_id uuid, p_actor text, p_action text, p_subject text, p_note text default null)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, p_action, p_subject, p_note)
$$;
comment on function jobs.audit(uuid, text, text, text, text) is
    'Adds a row to the audit log.';
revoke all on function jobs.audit(uuid, text, text, text, text) from public;
