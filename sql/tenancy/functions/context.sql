-- The tenant of a transaction: the session names it, and for logins that serve requests the server signs it. The
-- functions with a `return` body bind the functions that they call when they are created, so the order in this file
-- matters.

create or replace function tenancy.named_tenant_id()
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
revoke all on function tenancy.named_tenant_id() from public;
grant execute on function tenancy.named_tenant_id() to postrider_app, postrider_worker, postrider_read;
comment on function tenancy.named_tenant_id() is
    'Returns the tenant that the session names in `app.current_tenant_id` or its alias `app.current_tenant`, without '
    'checking the right to name it. Returns null when neither is set or when they differ.';

create or replace function tenancy.verified_tenant_id(p_tenant_id uuid)
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
revoke all on function tenancy.verified_tenant_id(uuid) from public;
grant execute on function tenancy.verified_tenant_id(uuid) to postrider_app, postrider_worker, postrider_read;
comment on function tenancy.verified_tenant_id(uuid) is
    'Returns the given tenant if `app.tenant_signature` holds its signature under a valid context key, and raises an '
    'error if not.';

-- Postgres inlines this function into the calling statement, because it has no settings of its own. `session_user` is
-- the login, which no session can change.
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
revoke all on function tenancy.current_tenant_id() from public;
grant execute on function tenancy.current_tenant_id() to postrider_app, postrider_worker, postrider_read;
comment on function tenancy.current_tenant_id() is
    'Returns the tenant that the transaction acts for, or null. All row-level security policies use it. Logins that '
    'are members of postrider_worker or postrider_owner name the tenant themselves; all other logins need the '
    'signature of the server.';

create or replace function tenancy.system_tenant_id()
returns uuid
language sql
immutable
parallel safe
return '00000000-0000-0000-0000-000000000001'::uuid;
revoke all on function tenancy.system_tenant_id() from public;
grant execute on function tenancy.system_tenant_id() to postrider_app, postrider_worker, postrider_read;
comment on function tenancy.system_tenant_id() is
    'Returns the id of tenant `system`, which owns the rows that belong to no customer. It has no API keys, is not '
    'listed, and cannot be removed.';

create or replace function tenancy.publishing_tenant_id()
returns uuid
language sql
stable
parallel safe
return coalesce(
           case
               when pg_has_role(session_user, 'postrider_app', 'member')
                and not pg_has_role(session_user, 'postrider_publish', 'member') then tenancy.current_tenant_id()
               else tenancy.named_tenant_id()
           end,
           tenancy.system_tenant_id());
revoke all on function tenancy.publishing_tenant_id() from public;
comment on function tenancy.publishing_tenant_id() is
    'Returns the tenant of an event that this session publishes: the system tenant, if the session names none. A login '
    'with postrider_publish names any tenant, because it cannot read anything. A login with postrider_app and without '
    'postrider_publish needs the signature.';

create or replace function tenancy.acts_for_server()
returns boolean
language sql
stable
parallel safe
return coalesce(tenancy.current_tenant_id() = '00000000-0000-0000-0000-000000000000'::uuid, false);
revoke all on function tenancy.acts_for_server() from public;
comment on function tenancy.acts_for_server() is
    'Whether the transaction acts for the server itself, before a tenant is known. The server then uses the nil UUID, '
    'which no tenant has.';

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
revoke all on function tenancy.required_tenant_id() from public;
grant execute on function tenancy.required_tenant_id() to postrider_app, postrider_worker, postrider_read;
comment on function tenancy.required_tenant_id() is
    'Returns the tenant of the transaction, or raises an error that explains how to set it.';

create or replace function tenancy.require_tenant(p_tenant_id uuid)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.current_tenant_id();
begin
    if p_tenant_id is null then
        raise exception 'p_tenant_id must not be null' using errcode = 'null_value_not_allowed';
    elsif v_tenant_id = p_tenant_id then
        return;
    elsif v_tenant_id is not null then
        raise exception 'p_tenant_id is not the tenant of this transaction' using errcode = 'insufficient_privilege';
    elsif not (pg_has_role(session_user, 'postrider_worker', 'member')
               or pg_has_role(session_user, 'postrider_owner', 'member')) then
        -- Raises the error that explains how to set a tenant.
        perform tenancy.required_tenant_id();
    end if;
end
$$;
revoke all on function tenancy.require_tenant(uuid) from public;
comment on function tenancy.require_tenant(uuid) is
    'Refuses a tenant other than that of the transaction. Without a tenant in the transaction, members of '
    'postrider_worker and postrider_owner may act for any. Entry functions call it with their first argument.';

create or replace function tenancy.new_hmac_key(out key bytea, out inner_pad bytea, out outer_pad bytea)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Each UUID contributes 122 bits of cryptographically strong randomness.
    key := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
    inner_pad := decode(repeat('36', 64), 'hex');
    outer_pad := decode(repeat('5c', 64), 'hex');
    for n in 0..31 loop
        inner_pad := set_byte(inner_pad, n, get_byte(inner_pad, n) # get_byte(key, n));
        outer_pad := set_byte(outer_pad, n, get_byte(outer_pad, n) # get_byte(key, n));
    end loop;
end
$$;
revoke all on function tenancy.new_hmac_key() from public;
comment on function tenancy.new_hmac_key() is
    'Returns a random key of HMAC-SHA256 with its two padded blocks.';

create or replace function tenancy.add_context_key()
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    insert into tenancy.context_keys (key, inner_pad, outer_pad)
    select fresh.key, fresh.inner_pad, fresh.outer_pad from tenancy.new_hmac_key() as fresh
$$;
revoke all on function tenancy.add_context_key() from public;
comment on function tenancy.add_context_key() is
    'Adds a random context key with its two padded blocks.';
-- The first key of a new installation.
select tenancy.add_context_key()
 where not exists (select from tenancy.context_keys);

create or replace function tenancy.rotate_context_key(p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform tenancy.add_context_key();
    delete from tenancy.context_keys
     where id not in (select newest.id from tenancy.context_keys as newest order by newest.id desc limit 2);
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (tenancy.system_tenant_id(), p_actor, 'context_key.rotated', 'installation');
end
$$;
revoke all on function tenancy.rotate_context_key(text) from public;
comment on function tenancy.rotate_context_key(text) is
    'Adds a context key and removes all but the newest two, so signatures under the previous key stay valid until the '
    'next rotation. Only members of the owner role may call it.';

create or replace function tenancy.context_key()
returns bytea
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select key.key from tenancy.context_keys as key order by key.id desc limit 1
$$;
revoke all on function tenancy.context_key() from public;
grant execute on function tenancy.context_key() to postrider_worker;
comment on function tenancy.context_key() is
    'Returns the newest context key. A server process reads it at its start and signs tenants with it.';
