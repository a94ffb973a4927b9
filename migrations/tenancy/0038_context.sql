-- Signs the tenant of a transaction, so that a login of `postrider_app` or `postrider_read` cannot name a tenant by itself, and
-- grants `postrider_publish` the right to publish events and nothing else.
-- Safe beside running workers: it adds a table, replaces functions and locks `tenancy.tenants` for a moment. Workers sign nothing and go on.
-- An older API process whose login is not a member of `postrider_worker` gets errors until it is replaced.

grant usage on schema m10_recovery to postrider_publish;
grant execute on function m10_recovery.publish_outbox(text, text, text, jsonb) to postrider_publish;

-- The keys of HMAC-SHA256, each with its two padded blocks, so that a signature takes two calls of sha256. Signatures under the
-- newest two keys are valid. No role but the owner reads this table.
create table tenancy.context_keys (
    id         integer     generated always as identity primary key,
    key        bytea       not null,
    inner_pad  bytea       not null,
    outer_pad  bytea       not null,
    created_at timestamptz not null default now(),
    constraint context_keys_have_the_sizes_of_sha256
        check (octet_length(key) = 32 and octet_length(inner_pad) = 64 and octet_length(outer_pad) = 64)
);

create function tenancy.add_context_key()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Each UUID has 122 bits of the server's strong random numbers.
    v_key constant bytea := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
    v_inner bytea := decode(repeat('36', 64), 'hex');
    v_outer bytea := decode(repeat('5c', 64), 'hex');
begin
    for n in 0..31 loop
        v_inner := set_byte(v_inner, n, get_byte(v_inner, n) # get_byte(v_key, n));
        v_outer := set_byte(v_outer, n, get_byte(v_outer, n) # get_byte(v_key, n));
    end loop;
    insert into tenancy.context_keys (key, inner_pad, outer_pad) values (v_key, v_inner, v_outer);
end
$$;
select tenancy.add_context_key();

-- Adds a key and removes all but the newest two: signatures under the key before stay valid until the next rotation. For members of
-- the owner role alone.
create function tenancy.rotate_context_key(p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.add_context_key();
    delete from tenancy.context_keys
     where id not in (select newest.id from tenancy.context_keys as newest order by newest.id desc limit 2);
    insert into tenancy.audit_log (actor, action, subject) values (p_actor, 'context_key.rotated', 'installation');
end
$$;

-- The newest key. A process of the server reads it at its start and signs with it.
create function tenancy.context_key()
returns bytea
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select key.key from tenancy.context_keys as key order by key.id desc limit 1
$$;

-- The tenant that the session names, whether or not it may. Two settings are honoured; when both are set and differ, or none is set,
-- there is no tenant.
create function tenancy.named_tenant_id()
returns uuid
language sql
stable
parallel safe
return case
           when nullif(current_setting('app.current_tenant_id', true), '') is null
               then nullif(current_setting('app.current_tenant', true), '')::uuid
           when nullif(current_setting('app.current_tenant', true), '') is null
             or nullif(current_setting('app.current_tenant', true), '')::uuid
                = nullif(current_setting('app.current_tenant_id', true), '')::uuid
               then nullif(current_setting('app.current_tenant_id', true), '')::uuid
       end;

-- Answers with the tenant if `app.tenant_signature` is its signature, and raises an error if not.
create function tenancy.verified_tenant_id(p_tenant_id uuid)
returns uuid
language plpgsql
stable
strict
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select
                 from tenancy.context_keys as key
                where encode(sha256(key.outer_pad || sha256(key.inner_pad || uuid_send(p_tenant_id))), 'hex')
                      = current_setting('app.tenant_signature', true))
    then
        return p_tenant_id;
    end if;
    raise exception 'the tenant of this transaction has no valid signature'
        using errcode = 'insufficient_privilege',
              hint = 'This login may not name a tenant itself. `postrider tenants context NAME` prints a signed context. '
                     'To publish events, use a login with the role postrider_publish.';
end
$$;

-- The one place that says which tenant a transaction acts for. Logins that are members of `postrider_worker` or `postrider_owner` name
-- it; of all others it must be signed. `session_user` is the login, which no session can change.
--
-- The function is planned as a part of the statement that calls it.
create or replace function tenancy.current_tenant_id()
returns uuid
language sql
stable
parallel safe
return case
           when tenancy.named_tenant_id() is null then null
           when pg_has_role(session_user, 'postrider_worker', 'member')
             or pg_has_role(session_user, 'postrider_owner', 'member') then tenancy.named_tenant_id()
           else tenancy.verified_tenant_id(tenancy.named_tenant_id())
       end;

-- The tenant of an event. A login that may publish and is not a member of `postrider_app` names any tenant; it can read nothing. A
-- member of both roles names it, too, because each of them has that right.
create function tenancy.publishing_tenant_id()
returns uuid
language sql
stable
parallel safe
return case
           when pg_has_role(session_user, 'postrider_app', 'member')
            and not pg_has_role(session_user, 'postrider_publish', 'member') then tenancy.current_tenant_id()
           else tenancy.named_tenant_id()
       end;

-- The server itself, where no tenant is known yet. No tenant has this id, so that no row belongs to it.
create function tenancy.acts_for_server()
returns boolean
language sql
stable
parallel safe
return coalesce(tenancy.current_tenant_id() = '00000000-0000-0000-0000-000000000000'::uuid, false);

alter table tenancy.tenants
    add constraint tenants_id_is_not_the_servers check (id <> '00000000-0000-0000-0000-000000000000');

create or replace function tenancy.may_act_for(p_tenant_id uuid)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.current_tenant_id();
begin
    if v_tenant_id is null then
        return pg_has_role(session_user, 'postrider_owner', 'member');
    end if;
    return p_tenant_id is not distinct from v_tenant_id;
end
$$;

create or replace function tenancy.required_tenant_id()
returns uuid
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.current_tenant_id();
begin
    if v_tenant_id is null then
        raise exception 'no tenant is set for this transaction'
            using errcode = 'insufficient_privilege',
                  hint = 'Begin with: set local app.current_tenant_id = ''<tenant id>''; a login that is not a member of '
                         'postrider_worker also needs app.tenant_signature (`postrider tenants context NAME` prints both).';
    end if;
    return v_tenant_id;
end
$$;

create or replace function m10_recovery.publish_outbox(
    p_aggregate_type text,
    p_aggregate_id text,
    p_event_type text,
    p_payload jsonb)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_id bigint;
begin
    if p_payload is null
       or btrim(p_aggregate_type) is not distinct from '' or btrim(p_aggregate_id) is not distinct from ''
       or btrim(p_event_type) is not distinct from ''
       or p_aggregate_type is null or p_aggregate_id is null or p_event_type is null
    then
        raise exception 'aggregate type, aggregate id, event type and payload must all be given'
            using errcode = 'invalid_parameter_value',
                  hint = 'For example: publish_outbox(''order'', ''42'', ''order.placed'', ''{"total": 12}'').';
    end if;
    if greatest(octet_length(p_aggregate_type), octet_length(p_aggregate_id), octet_length(p_event_type)) > 255 then
        raise exception 'aggregate type, aggregate id and event type have at most 255 bytes'
            using errcode = 'invalid_parameter_value';
    end if;
    if p_event_type ~ '[[:cntrl:]]' or p_aggregate_type ~ '[[:cntrl:]]' or p_aggregate_id ~ '[[:cntrl:]]' then
        raise exception 'aggregate type, aggregate id and event type hold no control characters'
            using errcode = 'invalid_parameter_value';
    end if;
    -- `#> '{}'` is the payload itself, unpacked: one that comes from a table's column may be compressed.
    if pg_column_size(p_payload #> '{}') > 262144 then
        raise exception 'the payload has % bytes; the limit is 262144', pg_column_size(p_payload #> '{}')
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;
    -- A few bytes of jsonb can be megabytes of text, and it is the text that is delivered.
    if octet_length(p_payload::text) > 1048576 then
        raise exception 'the payload has % bytes as text; the limit is 1048576', octet_length(p_payload::text)
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;

    -- Ready from the start: then waiting events and due retries take turns by the time they became ready.
    insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, process_after, tenant_id)
    values (p_aggregate_type, p_aggregate_id, p_event_type, p_payload, now(), tenancy.publishing_tenant_id())
    returning id into v_id;
    return v_id;
end
$$;

-- Whose account this is, before the tenant is known: a provider calls back with its id. For the server, and for the account's tenant.
create or replace function tenancy.account_of_callback(p_account_id uuid)
returns table (tenant_id uuid, provider text, settings jsonb, sealed_secret bytea)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select account.tenant_id, account.provider, account.settings, account.sealed_secret
      from tenancy.provider_accounts as account
     where account.id = p_account_id
       and (account.tenant_id = (select tenancy.current_tenant_id()) or (select tenancy.acts_for_server()))
$$;

-- Which of these runs have ended: those of the context's tenant, and for the server those of all tenants.
create or replace function jobs.which_ended(p_ids uuid[])
returns setof uuid
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select run.id
      from jobs.job_runs as run
     where run.id = any (p_ids)
       and run.status <> 'running'
       and run.retry_at is null
       and (run.tenant_id = (select tenancy.current_tenant_id()) or (select tenancy.acts_for_server()))
$$;

revoke all on function
    tenancy.add_context_key(),
    tenancy.rotate_context_key(text),
    tenancy.context_key(),
    tenancy.named_tenant_id(),
    tenancy.verified_tenant_id(uuid),
    tenancy.publishing_tenant_id(),
    tenancy.acts_for_server()
    from public;
grant execute on function tenancy.context_key() to postrider_worker;
grant execute on function tenancy.named_tenant_id(), tenancy.verified_tenant_id(uuid)
    to postrider_app, postrider_worker, postrider_read;
