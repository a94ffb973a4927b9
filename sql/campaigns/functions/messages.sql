-- Single messages: an application hands one over in its own transaction, and a worker groups those that are due into runs.

-- `p_account` is the name of an account. `p_asset` is the id of an asset, or its name (the newest version), or `NAME@VERSION`.
create or replace function execution.send_message(
    p_tenant_id uuid,
    p_channel text,
    p_account text,
    p_recipient text,
    p_key text,
    p_asset text default null,
    p_content jsonb default null,
    p_variables jsonb default '{}',
    p_send_after timestamptz default null,
    p_workspace_id uuid default null,
    p_actor text default null,
    p_id uuid default null)
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    c_variables_bytes_max constant integer := 32768;
    c_content_bytes_max constant integer := 262144;
    v_now constant timestamptz := now();
    v_send_after constant timestamptz := greatest(p_send_after, v_now);
    v_actor constant text := coalesce(nullif(btrim(p_actor), ''), session_user::text);
    v_key_hash constant bytea := sha256(convert_to(p_key, 'UTF8'));
    v_request_hash bytea;
    v_workspace_id uuid;
    v_account record;
    v_asset_id uuid;
    v_asset_channel text;
    v_known record;
    v_id uuid := coalesce(p_id, gen_random_uuid());
begin
    -- A login with postrider_publish names any tenant, as for publish_outbox: it cannot read anything.
    if not pg_has_role(session_user, 'postrider_publish', 'member') then
        perform tenancy.require_tenant(p_tenant_id);
    end if;
    if btrim(coalesce(p_key, '')) = '' or octet_length(p_key) > 255 or p_key ~ '[[:cntrl:]]' then
        raise exception 'the key must be given, with at most 255 bytes and without control characters'
            using errcode = 'invalid_parameter_value',
                  hint = 'Use a key of your own that is the same when you try again, such as the id of the order.';
    end if;
    if coalesce(p_channel, '') not in ('email', 'voice', 'social') then
        raise exception 'the channel is email, voice or social, not %', coalesce(p_channel, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if p_channel = 'email' and coalesce(p_recipient, '') !~ '^[^@[:space:][:cntrl:]]+@[^@[:space:][:cntrl:]]+$'
       or p_channel = 'voice' and coalesce(p_recipient, '') !~ '^[+][1-9][0-9]{4,14}$'
       or p_channel = 'social' and p_recipient is not null
       or octet_length(p_recipient) > 320
    then
        raise exception 'the recipient of channel % is %', p_channel,
                        case p_channel when 'email' then 'an e-mail address' when 'voice' then 'a phone number like +4930901820' else 'left out' end
            using errcode = 'invalid_parameter_value';
    end if;
    if num_nonnulls(p_asset, p_content) <> 1 then
        raise exception 'a message has either an asset or content of its own' using errcode = 'invalid_parameter_value';
    end if;
    if jsonb_typeof(p_content) <> 'object' or octet_length(p_content::text) > c_content_bytes_max then
        raise exception 'the content is a JSON object of at most % bytes', c_content_bytes_max
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(jsonb_typeof(p_variables), 'null') <> 'object' or octet_length(p_variables::text) > c_variables_bytes_max
       or p_variables ? 'lead'
    then
        raise exception 'the variables are a JSON object of at most % bytes, without `lead`, which has the address', c_variables_bytes_max
            using errcode = 'invalid_parameter_value';
    end if;
    if p_send_after > v_now + interval '10 years' then
        raise exception 'send_after is more than ten years ahead' using errcode = 'invalid_parameter_value';
    end if;
    select workspace.id
      into v_workspace_id
      from tenancy.workspaces as workspace
     where workspace.tenant_id = p_tenant_id
       and (p_workspace_id is null or workspace.id = p_workspace_id)
     order by workspace.created_at, workspace.id
     limit 1;
    if not found then
        raise exception 'there is no such tenant or workspace' using errcode = 'no_data_found';
    end if;
    -- As the caller wrote it: a repeat is the same although the asset has a newer version by then.
    v_request_hash := sha256(convert_to(
        jsonb_build_array(p_channel, p_account, p_recipient, p_asset, p_content, p_variables,
                          to_char(p_send_after at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'))::text, 'UTF8'));
    select message.id, message.request_hash
      into v_known
      from execution.messages as message
     where message.key_hash = v_key_hash
       and message.tenant_id = p_tenant_id
       and message.workspace_id = v_workspace_id;
    if not found then
        select account.id, account.provider
          into v_account
          from tenancy.provider_accounts as account
         where account.tenant_id = p_tenant_id
           and account.workspace_id = v_workspace_id
           and account.name = p_account;
        if not found then
            raise exception 'there is no provider account `%`', coalesce(p_account, '(none)')
                using errcode = 'no_data_found', hint = 'Add one with `postrider accounts add`.';
        end if;
        if p_asset is not null then
            select asset.id, asset.channel
              into v_asset_id, v_asset_channel
              from execution.assets as asset
             where asset.tenant_id = p_tenant_id
               and asset.workspace_id = v_workspace_id
               and (asset.name = p_asset
                    or asset.id::text = p_asset
                    or asset.name = regexp_replace(p_asset, '@[0-9]+$', '')
                       and asset.version::text = substring(p_asset from '@([0-9]+)$'))
             order by asset.id::text = p_asset desc, asset.name = p_asset desc, asset.version desc
             limit 1;
            if not found then
                raise exception 'there is no asset `%`', p_asset
                    using errcode = 'no_data_found', hint = 'Name its id, its name, or NAME@VERSION.';
            end if;
            if v_asset_channel <> p_channel then
                raise exception 'the asset `%` is for channel %, the message for %', p_asset, v_asset_channel, p_channel
                    using errcode = 'invalid_parameter_value';
            end if;
        end if;
        if exists (select from tenancy.tenants as tenant where tenant.id = p_tenant_id and tenant.removing_since is not null) then
            raise exception 'the tenant is being removed' using errcode = 'no_data_found';
        end if;
        -- Another transaction with this key is waited for.
        insert into execution.messages
               (id, tenant_id, workspace_id, key, key_hash, request_hash, channel, provider_account_id, provider, recipient,
                asset_id, content, variables, send_after, actor)
        values (v_id, p_tenant_id, v_workspace_id, p_key, v_key_hash, v_request_hash, p_channel, v_account.id, v_account.provider,
                p_recipient, v_asset_id, p_content, p_variables, v_send_after, v_actor)
            on conflict (key_hash, tenant_id, workspace_id) do nothing;
        if found then
            -- A worker that has waiting messages takes this one with them, and a hint per message would make the commits wait for
            -- each other.
            if v_send_after <= v_now
               and not exists (select
                                 from execution.messages as other
                                where other.tenant_id = p_tenant_id
                                  and other.run_id is null
                                  and other.ended_as is null
                                  and other.send_after <= v_now
                                  and other.id <> v_id)
            then
                perform tenancy.send_hint('postrider_jobs');
            end if;
            return v_id;
        end if;
        select message.id, message.request_hash
          into strict v_known
          from execution.messages as message
         where message.key_hash = v_key_hash
           and message.tenant_id = p_tenant_id
           and message.workspace_id = v_workspace_id;
    end if;
    if v_known.request_hash <> v_request_hash then
        raise exception 'the key `%` was used for another message, %', p_key, v_known.id
            using errcode = 'PR005',
                  hint = 'Repeat a message with the same values; give another message another key.';
    end if;
    return v_known.id;
end
$$;
comment on function
    execution.send_message(uuid, text, text, text, text, text, jsonb, jsonb, timestamptz, uuid, text, uuid) is
    'Sends one message outside a campaign, if and only if the transaction of the caller commits, and returns its id. The same key and '
    'message return the id of the first call; the same key with another message raises PR005.';
revoke all on function
    execution.send_message(uuid, text, text, text, text, text, jsonb, jsonb, timestamptz, uuid, text, uuid)
    from public;
grant execute on function
    execution.send_message(uuid, text, text, text, text, text, jsonb, jsonb, timestamptz, uuid, text, uuid)
    to postrider_app, postrider_publish;

create or replace function execution.tenants_with_due_messages(p_limit integer)
returns table (tenant_id uuid)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now       constant timestamptz := now();
    v_tenant_id uuid := '00000000-0000-0000-0000-000000000000'::uuid;
    v_due_at    timestamptz;
    v_found     integer := 0;
begin
    -- One index lookup per tenant that has a waiting message.
    loop
        select message.tenant_id, message.send_after
          into v_tenant_id, v_due_at
          from execution.messages as message
         where message.run_id is null
           and message.ended_as is null
           and message.tenant_id > v_tenant_id
         order by message.tenant_id, message.send_after
         limit 1;
        exit when not found or v_found >= p_limit;
        if v_due_at <= v_now then
            tenant_id := v_tenant_id;
            v_found := v_found + 1;
            return next;
        end if;
    end loop;
end
$$;
comment on function execution.tenants_with_due_messages(integer) is
    'Returns up to p_limit tenants with single messages that are due and in no run yet. Locks nothing; group_messages then acts per '
    'tenant.';
revoke all on function execution.tenants_with_due_messages(integer) from public;
grant execute on function execution.tenants_with_due_messages(integer) to postrider_worker;

create or replace function execution.group_messages(
    p_tenant_id uuid, p_worker_id text, p_limit integer default 5000, p_job_size integer default 100)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now constant timestamptz := now();
    v_ids uuid[];
    v_group record;
    v_run_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if p_limit is null or p_limit not between 1 and 10000 or p_job_size is null or p_job_size not between 1 and 10000 then
        raise exception 'p_limit and p_job_size lie between 1 and 10000' using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(
        select message.id
          from execution.messages as message
         where message.tenant_id = p_tenant_id
           and message.run_id is null
           and message.ended_as is null
           and message.send_after <= v_now
         order by message.send_after, message.id
         limit p_limit
           for update skip locked);
    for v_group in
        select message.workspace_id, message.channel, message.provider_account_id, message.provider,
               array_agg(message.id order by message.send_after, message.id) as ids
          from unnest(v_ids) as due (id)
               cross join lateral (
                   select found.id, found.workspace_id, found.channel, found.provider_account_id, found.provider, found.send_after
                     from execution.messages as found
                    where found.tenant_id = p_tenant_id
                      and found.id = due.id
                   offset 0) as message
         group by message.workspace_id, message.channel, message.provider_account_id, message.provider
         order by message.workspace_id, message.channel, message.provider_account_id
    loop
        v_run_id := gen_random_uuid();
        insert into execution.campaign_runs
               (id, tenant_id, workspace_id, channel, provider_account_id, provider, quiet_time, key_part, intended, cause, correlation_id)
        values (v_run_id, p_tenant_id, v_group.workspace_id, v_group.channel, v_group.provider_account_id, v_group.provider,
                interval '11 minutes', 'message', cardinality(v_group.ids), 'message', gen_random_uuid());
        insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, item_ids)
        select gen_random_uuid(), p_tenant_id, v_group.workspace_id, v_run_id, part + 1,
               case v_group.channel
                   when 'email' then 'email_send_batch'
                   when 'voice' then 'voice_call_batch'
                   else 'social_post_batch'
               end,
               v_group.ids[part * p_job_size + 1 : (part + 1) * p_job_size]
          from generate_series(0, (cardinality(v_group.ids) - 1) / p_job_size) as part;
        update execution.messages as message
           set run_id = v_run_id
         where message.tenant_id = p_tenant_id
           and message.id = any (v_group.ids);
        perform execution.audit(p_tenant_id, null, null, v_run_id, null, null, p_worker_id, 'run.deployed',
                                cardinality(v_group.ids) || ' single messages');
    end loop;
    if cardinality(v_ids) > 0 then
        -- Check first: an insert alone would wait for a worker that is updating the row of this tenant.
        insert into execution.claim_order (tenant_id)
        select p_tenant_id
         where not exists (select from execution.claim_order as place where place.tenant_id = p_tenant_id)
            on conflict do nothing;
    end if;
    return cardinality(v_ids);
end
$$;
comment on function execution.group_messages(uuid, text, integer, integer) is
    'Puts up to p_limit single messages of a tenant that are due into runs: one run per workspace, channel and account, with its send '
    'jobs. Messages that another worker is grouping are left to it. Returns the number of messages.';
revoke all on function execution.group_messages(uuid, text, integer, integer) from public;
grant execute on function execution.group_messages(uuid, text, integer, integer) to postrider_worker;

create or replace function execution.unsendable_messages(
    p_tenant_id uuid, p_workspace_id uuid, p_channel text, p_message_ids uuid[])
returns table (message_id uuid, reason text, is_erased boolean)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_keeps_hashes constant boolean := exists (
        select from execution.suppression_keys as key where key.tenant_id = p_tenant_id);
begin
    return query
        select message.id,
               coalesce(person.reason, case when message.recipient is null then 'erased' else 'suppressed before erasure' end),
               coalesce(person.is_being_erased, false) or message.recipient is null
          from unnest(p_message_ids) as wanted (id)
               cross join lateral (
                   select found.id, found.recipient
                     from execution.messages as found
                    where found.tenant_id = p_tenant_id
                      and found.id = wanted.id
                   offset 0) as message
               left join lateral (
                   select lead.suppression_reason as reason, lead.erasing_since is not null as is_being_erased
                     from execution.leads as lead
                    where p_channel = 'email'
                      and lead.tenant_id = p_tenant_id
                      and lead.workspace_id = p_workspace_id
                      and lower(lead.email) = lower(message.recipient)
                      and lead.suppressed_at is not null
                    union all
                   select lead.suppression_reason, lead.erasing_since is not null
                     from execution.leads as lead
                    where p_channel = 'voice'
                      and lead.tenant_id = p_tenant_id
                      and lead.workspace_id = p_workspace_id
                      and lead.phone = message.recipient
                      and lead.suppressed_at is not null
                    order by 2 desc
                    limit 1) as person on true
         where p_channel <> 'social'
           and (person.reason is not null
                or message.recipient is null
                or v_keeps_hashes
                   and exists (select
                                 from execution.suppressed_addresses as known
                                where known.tenant_id = p_tenant_id
                                  and known.workspace_id = p_workspace_id
                                  and known.hash = any (execution.address_hashes(
                                          p_tenant_id, case p_channel when 'email' then message.recipient end,
                                          case p_channel when 'voice' then message.recipient end, null))));
end
$$;
comment on function execution.unsendable_messages(uuid, uuid, text, uuid[]) is
    'Returns those of the single messages that may not be sent, with the reason: a lead with the address is suppressed, an erased '
    'person with the address was, or the person was erased.';
revoke all on function execution.unsendable_messages(uuid, uuid, text, uuid[]) from public;

create or replace function execution.read_messages(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer)
returns table (message_id uuid, asset_id uuid, content jsonb)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select message.id, message.asset_id,
               case
                   when message.asset_id is null then message.content
                   when row_number() over (partition by message.asset_id order by message.id) = 1
                       then (select asset.content
                               from execution.assets as asset
                              where asset.tenant_id = p_tenant_id
                                and asset.id = message.asset_id)
               end
          from execution.job_queue as job
               cross join unnest(job.item_ids) as item (id)
               cross join lateral (
                   select found.id, found.asset_id, found.content
                     from execution.messages as found
                    where found.tenant_id = p_tenant_id
                      and found.id = item.id
                   offset 0) as message
         where job.tenant_id = p_tenant_id
           and job.id = p_job_id
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempt;
end
$$;
comment on function execution.read_messages(uuid, text, uuid, integer) is
    'Returns the contents of the single messages of a send job that the worker holds. The content of an asset comes with the first '
    'message that has it.';
revoke all on function execution.read_messages(uuid, text, uuid, integer) from public;
grant execute on function execution.read_messages(uuid, text, uuid, integer) to postrider_worker;

create or replace function execution.refuse_change_of_message()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    c_erasable constant text[] := array['key', 'request_hash', 'recipient', 'content', 'variables'];
    c_ends constant text[] := array['ended_as', 'ended_at'];
    v_old constant jsonb := to_jsonb(old);
    v_new jsonb;
    v_may_redact boolean;
begin
    if tg_op = 'DELETE' then
        if exists (select from tenancy.tenants as tenant where tenant.id = old.tenant_id and tenant.removing_since is not null) then
            return old;
        end if;
    else
        v_new := to_jsonb(new);
        v_may_redact := exists (select
                                  from execution.erasures as erasure
                                 where erasure.tenant_id = old.tenant_id
                                   and erasure.at = now())
                        or exists (select
                                     from execution.run_archives as archive
                                    where archive.tenant_id = old.tenant_id
                                      and archive.run_id = old.run_id);
        if v_may_redact
           and v_new - c_erasable - c_ends = v_old - c_erasable - c_ends
           and (old.ended_as is null or new.ended_as = old.ended_as)
           and (select bool_and(v_new -> redacted.name = v_old -> redacted.name or v_new -> redacted.name in ('null', '{}'))
                  from unnest(c_erasable) as redacted (name))
        then
            return new;
        end if;
    end if;
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;
revoke all on function execution.refuse_change_of_message() from public;
comment on function execution.refuse_change_of_message() is
    'Trigger function: refuses every change of a single message but two. What it says is removed when its run is archived or its '
    'person is erased, and it is deleted with its tenant.';
create or replace trigger messages_are_facts
    before update of id, tenant_id, workspace_id, key, key_hash, request_hash, channel, provider_account_id, provider, recipient,
                     asset_id, content, variables, send_after, created_at, actor, ended_as, ended_at
        or delete
    on execution.messages
    for each row
    execute function execution.refuse_change_of_message('a message that was handed over never changes, and its key stays used');
create or replace trigger messages_get_one_run
    before update of run_id on execution.messages
    for each row
    when (old.run_id is not null or old.ended_as is not null or new.run_id is null)
    execute function tenancy.refuse_change('a message is in one run');
create or replace trigger messages_are_never_emptied
    before truncate on execution.messages
    for each statement
    execute function tenancy.refuse_change('a message that was handed over never changes, and its key stays used');

-- A definer function because of the index by address, as read_audience.
create or replace function execution.messages_to(
    p_tenant_id uuid, p_recipient text, p_key text, p_channel text, p_before timestamptz, p_before_id uuid, p_limit bigint)
returns table (message_id uuid)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select message.id
          from execution.messages as message
         where message.tenant_id = p_tenant_id
           and lower(message.recipient) = lower(p_recipient)
           and message.recipient is not null
           and (p_key is null or message.key = p_key)
           and (p_channel is null or message.channel = p_channel)
           and (p_before is null or (message.created_at, message.id) < (p_before, p_before_id))
         order by message.created_at desc, message.id desc
         limit p_limit;
end
$$;
comment on function execution.messages_to(uuid, text, text, text, timestamptz, uuid, bigint) is
    'Returns the newest single messages of the tenant to an address, in upper or lower case, page by page.';
revoke all on function execution.messages_to(uuid, text, text, text, timestamptz, uuid, bigint) from public;
grant execute on function
    execution.messages_to(uuid, text, text, text, timestamptz, uuid, bigint)
    to postrider_app, postrider_read;
