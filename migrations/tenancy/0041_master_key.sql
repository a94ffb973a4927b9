-- Which master key the secrets of this installation are sealed under: a known value sealed with it, and a trigger that refuses secrets
-- sealed with another key.
-- Safe beside running workers: it adds a table, functions, and a trigger that accepts every secret until a key is registered. Processes
-- that run already seal under the key that is going to be registered.

-- One row. No role but the owner reads or writes it.
create table tenancy.master_key (
    is_the_only_row boolean     primary key default true,
    sealed_check    bytea       not null,
    changed_at      timestamptz not null default now(),
    constraint master_key_is_the_only_row check (is_the_only_row)
);

-- The id of the key that sealed a value, from its header: version, four bytes of key id, nonce. Null for anything else.
create function tenancy.key_id_of(p_sealed bytea)
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case when octet_length(p_sealed) >= 29 and get_byte(p_sealed, 0) = 1 then substring(p_sealed from 2 for 4) end
$$;

-- The known value; null before a key is registered.
create function tenancy.master_key_check()
returns bytea
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select sealed_check from tenancy.master_key
$$;

-- The same for a transaction that is about to seal something: a rotation waits for its end, and it waits for the end of a rotation.
create function tenancy.sealing_key_check()
returns bytea
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    select sealed_check from tenancy.master_key for key share
$$;

-- Every sealed value there is. A test compares this list with the columns called `sealed_secret`.
create function tenancy.sealed_values()
returns table (kind text, tenant_id uuid, id uuid, sealed_secret bytea)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select 'account', account.tenant_id, account.id, account.sealed_secret
      from tenancy.provider_accounts as account
    union all
    select 'executor', executor.tenant_id, executor.id, executor.sealed_secret
      from channels.channel_executors as executor
     where executor.sealed_secret is not null
    union all
    select 'function', function.tenant_id, function.id, function.sealed_secret
      from jobs.functions as function
     where function.sealed_secret is not null
$$;

-- How many values are sealed under which key, with one value of each.
create function tenancy.sealed_keys()
returns table (key_id bytea, number bigint, tenant_id uuid, id uuid, sealed_secret bytea)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select distinct on (tenancy.key_id_of(value.sealed_secret))
           tenancy.key_id_of(value.sealed_secret),
           count(*) over (partition by tenancy.key_id_of(value.sealed_secret)),
           value.tenant_id, value.id, value.sealed_secret
      from tenancy.sealed_values() as value
     where tenancy.key_id_of(value.sealed_secret) is not null
     order by tenancy.key_id_of(value.sealed_secret), value.id
$$;

-- Registers a key where none is, and returns the known value that counts from now on.
create function tenancy.register_master_key(p_sealed_check bytea)
returns bytea
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sealed_check bytea;
begin
    if tenancy.key_id_of(p_sealed_check) is null then
        raise exception 'p_sealed_check must be a sealed value' using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.master_key (sealed_check) values (p_sealed_check) on conflict do nothing;
    -- A new snapshot: another process may have been faster.
    select sealed_check into strict v_sealed_check from tenancy.master_key;
    return v_sealed_check;
end
$$;

-- Replaces the registered key. From here to the end of the transaction no other transaction seals anything. For the owner alone.
create function tenancy.replace_master_key(p_sealed_check bytea, p_action text, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if tenancy.key_id_of(p_sealed_check) is null then
        raise exception 'p_sealed_check must be a sealed value' using errcode = 'invalid_parameter_value';
    end if;
    perform from tenancy.master_key for update;
    insert into tenancy.master_key (sealed_check)
    values (p_sealed_check)
    on conflict (is_the_only_row) do update set sealed_check = excluded.sealed_check, changed_at = now();
    insert into tenancy.audit_log (actor, action, subject)
    values (p_actor, p_action, 'master_key:' || encode(tenancy.key_id_of(p_sealed_check), 'hex'));
end
$$;

-- Puts newly sealed values in the place of the old ones, where those are still there. The plain secret is the same, so the times
-- at which secrets were set stay. For the owner alone.
create function tenancy.reseal(p_kinds text[], p_tenant_ids uuid[], p_ids uuid[], p_old bytea[], p_new bytea[])
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number bigint := 0;
    v_one    record;
    v_set_at timestamptz;
begin
    for v_one in
        select value.kind, value.tenant_id, value.id, value.old, value.new
          from unnest(p_kinds, p_tenant_ids, p_ids, p_old, p_new) as value (kind, tenant_id, id, old, new)
    loop
        case v_one.kind
            when 'account' then
                select secret_set_at into v_set_at
                  from tenancy.provider_accounts
                 where tenant_id = v_one.tenant_id and id = v_one.id and sealed_secret = v_one.old
                   for no key update;
                continue when not found;
                update tenancy.provider_accounts set sealed_secret = v_one.new where tenant_id = v_one.tenant_id and id = v_one.id;
                -- A trigger has set this to now.
                update tenancy.provider_accounts set secret_set_at = v_set_at where tenant_id = v_one.tenant_id and id = v_one.id;
            when 'executor' then
                update channels.channel_executors
                   set sealed_secret = v_one.new
                 where tenant_id = v_one.tenant_id and id = v_one.id and sealed_secret = v_one.old;
                continue when not found;
            when 'function' then
                update jobs.functions
                   set sealed_secret = v_one.new
                 where tenant_id = v_one.tenant_id and id = v_one.id and sealed_secret = v_one.old;
                continue when not found;
        end case;
        v_number := v_number + 1;
    end loop;
    return v_number;
end
$$;

-- A process that was left running with the old key cannot store what no other process could open.
create function tenancy.refuse_other_master_key()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tenancy.key_id_of(new.sealed_secret) <> tenancy.key_id_of(tenancy.sealing_key_check()) then
        raise exception 'the secret is sealed under another master key than the secrets of this installation'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name,
                  hint = 'Start this process with the master key that is in use now.';
    end if;
    return new;
end
$$;
-- An update that keeps the secret takes no lock on the registered key: a rotation may hold that, and wait for the row.
create trigger provider_accounts_are_sealed_under_one_key
    before insert on tenancy.provider_accounts
    for each row
    when (new.sealed_secret is not null)
    execute function tenancy.refuse_other_master_key();
create trigger provider_accounts_stay_sealed_under_one_key
    before update of sealed_secret on tenancy.provider_accounts
    for each row
    when (new.sealed_secret is distinct from old.sealed_secret)
    execute function tenancy.refuse_other_master_key();
create trigger channel_executors_are_sealed_under_one_key
    before insert on channels.channel_executors
    for each row
    when (new.sealed_secret is not null)
    execute function tenancy.refuse_other_master_key();
create trigger channel_executors_stay_sealed_under_one_key
    before update of sealed_secret on channels.channel_executors
    for each row
    when (new.sealed_secret is distinct from old.sealed_secret)
    execute function tenancy.refuse_other_master_key();
create trigger functions_are_sealed_under_one_key
    before insert on jobs.functions
    for each row
    when (new.sealed_secret is not null)
    execute function tenancy.refuse_other_master_key();
create trigger functions_stay_sealed_under_one_key
    before update of sealed_secret on jobs.functions
    for each row
    when (new.sealed_secret is distinct from old.sealed_secret)
    execute function tenancy.refuse_other_master_key();

revoke all on function
    tenancy.key_id_of(bytea),
    tenancy.master_key_check(),
    tenancy.sealing_key_check(),
    tenancy.sealed_values(),
    tenancy.sealed_keys(),
    tenancy.register_master_key(bytea),
    tenancy.replace_master_key(bytea, text, text),
    tenancy.reseal(text[], uuid[], uuid[], bytea[], bytea[]),
    tenancy.refuse_other_master_key()
    from public;
grant execute on function tenancy.master_key_check() to postrider_app, postrider_worker;
grant execute on function tenancy.sealing_key_check() to postrider_app;
grant execute on function tenancy.sealed_keys(), tenancy.register_master_key(bytea) to postrider_worker;
