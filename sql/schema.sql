-- The schema as it is after `postrider migrate`. To read, not to run.
-- Made from the pg_dump of PostgreSQL 15; a test compares it. Refresh it with `make schema`.

CREATE SCHEMA channels;

COMMENT ON SCHEMA channels IS 'Chat: messages, links of senders, executors and replies.';

CREATE SCHEMA events;

COMMENT ON SCHEMA events IS 'Domain events: the sinks of the relay, deliveries, and the functions of the relay and of operators.';

CREATE SCHEMA execution;

COMMENT ON SCHEMA execution IS 'Campaigns: audience, phases, runs, send jobs, items and their idempotency keys.';

CREATE SCHEMA jobs;

COMMENT ON SCHEMA jobs IS 'Scheduled jobs: functions, schedules, job runs, dead letters, alerts and notifications.';

CREATE SCHEMA m10_recovery;

COMMENT ON SCHEMA m10_recovery IS 'Domain events: the table and the three functions of the M10 contract, and nothing else.';

CREATE SCHEMA postrider;

COMMENT ON SCHEMA postrider IS 'Records of the migrator: applied files and the catalog that they lead to.';

CREATE SCHEMA tenancy;

COMMENT ON SCHEMA tenancy IS 'Tenants, workspaces, API keys, provider accounts, the audit log, answered requests, and the installation itself.';

CREATE FUNCTION channels.accounts_with_due_replies(p_limit integer, p_full_tenants uuid[], p_full_accounts uuid[], p_after_tenant uuid, p_after_account uuid) RETURNS TABLE(tenant_id uuid, account_id uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_incremental_sort TO 'off'
    AS $$
declare
    v_nil     constant uuid := uuid '00000000-0000-0000-0000-000000000000';
    v_now     constant timestamptz := now();
    v_tenant  uuid := coalesce(p_after_tenant, v_nil);
    v_account uuid := coalesce(p_after_account, v_nil);
    -- The walk goes around all accounts once.
    v_is_second_round boolean := p_after_tenant is null;
    v_left    integer := p_limit;
begin
    while v_left > 0 loop
        select reply.tenant_id, reply.account_id
          into v_tenant, v_account
          from channels.channel_outbox as reply
         where reply.status in ('pending', 'sending')
           and (reply.tenant_id, reply.account_id) > (v_tenant, v_account)
         order by reply.tenant_id, reply.account_id
         limit 1;
        if not found then
            exit when v_is_second_round;
            v_is_second_round := true;
            v_tenant := v_nil;
            v_account := v_nil;
            continue;
        end if;
        exit when v_is_second_round and p_after_tenant is not null
              and (v_tenant, v_account) > (p_after_tenant, p_after_account);
        continue when exists (select
                                from unnest(p_full_tenants, p_full_accounts) as filled (tenant_id, account_id)
                               where filled.tenant_id = v_tenant
                                 and filled.account_id = v_account);
        -- The account as a whole waits for its provider, or one reply finds out whether it answers again.
        continue when exists (select
                                from execution.account_states as state
                               where state.tenant_id = v_tenant
                                 and state.account_id = v_account
                                 and (state.wait_until > v_now or state.circuit_open_until > v_now
                                      or state.circuit_open_until is not null and state.probe_until > v_now));
        perform
           from channels.channel_outbox as reply
          where reply.status in ('pending', 'sending')
            and reply.status = 'pending'
            and reply.tenant_id = v_tenant
            and reply.account_id = v_account
            and reply.next_attempt_at <= v_now
          order by reply.next_attempt_at, reply.id
          limit 1;
        continue when not found;
        tenant_id := v_tenant;
        account_id := v_account;
        return next;
        v_left := v_left - 1;
    end loop;
end
$$;

COMMENT ON FUNCTION channels.accounts_with_due_replies(p_limit integer, p_full_tenants uuid[], p_full_accounts uuid[], p_after_tenant uuid, p_after_account uuid) IS 'Chooses up to p_limit accounts of all tenants that have due replies, without locking anything. The walk starts after the given account, goes around once, and skips the accounts in p_full_tenants and p_full_accounts, and those that wait for their provider or have an open circuit. It finds accounts one by one in the index, so one backlog does not slow down the choice.';

CREATE FUNCTION channels.admit_message(p_tenant_id uuid, p_message_id uuid, p_account_id uuid, p_sender_id text, p_lease interval) RETURNS TABLE(verdict text, execution integer, user_id text, role text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now      constant timestamptz := now();
    v_link     channels.channel_links;
    v_required text;
    v_status   text;
    v_reason   text;
begin
    select executor.required_role
      into v_required
      from channels.channel_executors as executor
     where executor.tenant_id = p_tenant_id
       and (executor.account_id = p_account_id or executor.account_id is null)
     order by executor.account_id nulls last
     limit 1;
    if not found then
        raise exception 'nothing executes the messages of this account'
            using errcode = 'no_data_found',
                  hint = 'Say what does: PUT /api/v2/channels/executors, or `postrider channels executor`.';
    end if;
    select link.*
      into v_link
      from channels.channel_links as link
     where link.tenant_id = p_tenant_id
       and link.account_id = p_account_id
       and link.sender_id = p_sender_id;
    if not found then
        v_status := 'denied_unlinked';
        v_reason := 'no user is linked to this sender';
    elsif array_position(array['viewer', 'operator', 'admin'], v_link.role)
          < array_position(array['viewer', 'operator', 'admin'], v_required) then
        v_status := 'denied_rbac';
        v_reason := format('%s is %s, and it takes %s', v_link.user_id, v_link.role, v_required);
    end if;
    if v_status is not null then
        return query
            update channels.channel_messages as message
               set status = v_status,
                   user_id = v_link.user_id,
                   role = v_link.role,
                   last_error = v_reason,
                   is_executing = false,
                   leased_until = null,
                   updated_at = v_now
             where message.tenant_id = p_tenant_id
               and message.id = p_message_id
            returning 'denied'::text, message.executions, message.user_id, message.role;
        return;
    end if;
    return query
        update channels.channel_messages as message
           set executions = message.executions + 1,
               is_executing = true,
               leased_until = v_now + p_lease,
               user_id = v_link.user_id,
               role = v_link.role,
               updated_at = v_now
         where message.tenant_id = p_tenant_id
           and message.id = p_message_id
        returning 'execute'::text, message.executions, message.user_id, message.role;
end
$$;

COMMENT ON FUNCTION channels.admit_message(p_tenant_id uuid, p_message_id uuid, p_account_id uuid, p_sender_id text, p_lease interval) IS 'Decides whether the sender may have the message executed, and if so leases the message to a new execution. Returns the verdict `execute` or `denied`.';

CREATE FUNCTION channels.claim_replies(p_tenant_id uuid, p_worker text, p_limit integer, p_accounts uuid[], p_capacities integer[]) RETURNS TABLE(id uuid, channel_message_id uuid, account_id uuid, provider text, recipient_id text, payload jsonb, attempt_count integer, max_attempts integer, claims integer, in_doubt_since timestamp with time zone, provider_message_id text, correlation_id uuid, created_at timestamp with time zone, account_version timestamp with time zone, is_requeued boolean, is_probe boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET enable_incremental_sort TO 'off'
    AS $$
declare
    v_now     constant timestamptz := now();
    v_left    integer := p_limit;
    v_version timestamptz;
    v_ids     uuid[];
    v_id      uuid;
    v_waits   boolean;
    v_probes  boolean;
begin
    if p_tenant_id is null then
        raise exception 'p_tenant_id must not be null' using errcode = 'null_value_not_allowed';
    end if;
    if coalesce(btrim(p_worker), '') = '' then
        raise exception 'p_worker must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    for v_at in 1..coalesce(cardinality(p_accounts), 0) loop
        exit when v_left < 1;
        continue when p_capacities[v_at] < 1;
        v_probes := false;
        select coalesce(state.wait_until > v_now, false) or coalesce(state.circuit_open_until > v_now, false),
               state.circuit_open_until is not null
          into v_waits, v_probes
          from execution.account_states as state
         where state.tenant_id = p_tenant_id
           and state.account_id = p_accounts[v_at];
        continue when v_waits;
        v_ids := array(
            select reply.id
              from channels.channel_outbox as reply
             where reply.status in ('pending', 'sending')
               and reply.status = 'pending'
               and reply.tenant_id = p_tenant_id
               and reply.account_id = p_accounts[v_at]
               and reply.next_attempt_at <= v_now
             order by reply.next_attempt_at, reply.id
             limit case when v_probes then 1 else least(p_capacities[v_at], v_left) end
               for update skip locked);
        continue when v_ids = '{}';
        -- While the circuit is half open, one reply at a time finds out whether the provider answers again.
        if v_probes then
            update execution.account_states as state
               set probe_job_id = null,
                   probe_until = v_now + interval '2 minutes'
             where state.tenant_id = p_tenant_id
               and state.account_id = p_accounts[v_at]
               and (state.probe_until is null or state.probe_until <= v_now);
            continue when not found;
        end if;
        v_left := v_left - cardinality(v_ids);
        v_version := (select account.updated_at
                        from tenancy.provider_accounts as account
                       where account.tenant_id = p_tenant_id
                         and account.id = p_accounts[v_at]);
        -- One by one: for a list of ids Postgres might read all replies of the tenant, when it takes them to be few.
        foreach v_id in array v_ids loop
            return query
                update channels.channel_outbox as reply
                   set status = 'sending',
                       locked_at = v_now,
                       locked_by = p_worker,
                       claims = reply.claims + 1,
                       updated_at = v_now
                 where reply.tenant_id = p_tenant_id
                   and reply.id = v_id
                returning reply.id, reply.channel_message_id, reply.account_id, reply.provider, reply.recipient_id,
                          reply.payload, reply.attempt_count, reply.max_attempts, reply.claims, reply.in_doubt_since,
                          reply.provider_message_id, reply.correlation_id, reply.created_at, v_version,
                          coalesce(reply.requeued_at > reply.in_doubt_since, false), coalesce(v_probes, false);
        end loop;
    end loop;
end
$$;

COMMENT ON FUNCTION channels.claim_replies(p_tenant_id uuid, p_worker text, p_limit integer, p_accounts uuid[], p_capacities integer[]) IS 'Claims up to p_limit due replies of a tenant, account by account in the given order, the longest due first. Each account yields at most its entry in p_capacities, one while its circuit is half open (is_probe), and none while it waits for its provider. Replies that another dispatcher is claiming are skipped.';

CREATE FUNCTION channels.claim_unfinished_messages(p_tenant_id uuid, p_limit integer, p_lease interval) RETURNS TABLE(message_id uuid, account_id uuid, provider text, sender_id text, recipient_id text, thread text, text text, verdict text, execution integer, user_id text, role text, correlation_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    AS $$
declare
    v_now     constant timestamptz := now();
    v_message channels.channel_messages;
begin
    for v_message in
        select message.*
          from channels.channel_messages as message
         where message.tenant_id = p_tenant_id
           and message.leased_until < v_now
           and message.reply is null
         order by message.leased_until
         limit p_limit
           for update skip locked
    loop
        if not exists (select from tenancy.provider_accounts as account
                        where account.tenant_id = p_tenant_id and account.id = v_message.account_id) then
            update channels.channel_messages as message
               set status = 'dispatch_failed',
                   last_error = 'its account was removed',
                   is_executing = false,
                   leased_until = null,
                   updated_at = v_now
             where message.tenant_id = p_tenant_id
               and message.id = v_message.id;
            continue;
        end if;
        -- A message of an account without an executor waits until there is one.
        if not exists (select from channels.channel_executors as executor
                        where executor.tenant_id = p_tenant_id
                          and (executor.account_id = v_message.account_id or executor.account_id is null)) then
            update channels.channel_messages as message
               set is_executing = false,
                   leased_until = v_now + interval '1 minute'
             where message.tenant_id = p_tenant_id
               and message.id = v_message.id;
            continue;
        end if;
        return query
            select v_message.id, v_message.account_id, v_message.provider, v_message.sender_id, v_message.recipient_id,
                   v_message.thread, v_message.text, admitted.verdict, admitted.execution, admitted.user_id,
                   admitted.role, v_message.correlation_id
              from channels.admit_message(p_tenant_id, v_message.id, v_message.account_id, v_message.sender_id, p_lease)
                   as admitted;
    end loop;
end
$$;

COMMENT ON FUNCTION channels.claim_unfinished_messages(p_tenant_id uuid, p_limit integer, p_lease interval) IS 'Takes up to p_limit messages of a tenant whose execution lease has expired, because the process that executed them is gone. Returns the same verdicts as admit_message.';

CREATE FUNCTION channels.deny_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reason text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_messages as message
       set status = 'denied_sentinel',
           last_error = left(p_reason, 1000),
           is_executing = false,
           leased_until = null,
           updated_at = now()
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id
       and message.executions = p_execution
       and message.status in ('accepted', 'dispatch_failed');
    return found;
end
$$;

COMMENT ON FUNCTION channels.deny_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reason text) IS 'Ends a message that the sentinel refused. Returns false and changes nothing if a newer execution has the message or the message has ended.';

CREATE FUNCTION channels.enqueue_kept_replies(p_tenant_id uuid, p_reply_ids uuid[], p_max_attempts integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    AS $$
declare
    v_now     constant timestamptz := now();
    v_message record;
    v_count   integer := 0;
begin
    for v_message in
        select message.id, message.reply
          from channels.channel_messages as message
         where message.tenant_id = p_tenant_id
           and message.leased_until < v_now
           and message.reply is not null
         order by message.leased_until
         limit cardinality(p_reply_ids)
           for update skip locked
    loop
        begin
            perform channels.enqueue_reply(
                p_tenant_id, v_message.id, p_reply_ids[v_count + 1], v_message.reply, p_max_attempts);
            v_count := v_count + 1;
        exception when integrity_constraint_violation then
            update channels.channel_messages as message
               set last_error = left('its reply cannot be enqueued: ' || sqlerrm, 1000),
                   leased_until = v_now + interval '1 minute',
                   updated_at = v_now
             where message.tenant_id = p_tenant_id
               and message.id = v_message.id;
        end;
    end loop;
    return v_count;
end
$$;

COMMENT ON FUNCTION channels.enqueue_kept_replies(p_tenant_id uuid, p_reply_ids uuid[], p_max_attempts integer) IS 'Puts kept replies of a tenant into the outbox, at most one per given reply id, and returns their number. A reply that the outbox refuses waits a minute, so that it does not delay the others.';

CREATE FUNCTION channels.enqueue_reply(p_tenant_id uuid, p_message_id uuid, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_message channels.channel_messages;
begin
    select message.*
      into strict v_message
      from channels.channel_messages as message
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id;
    insert into channels.channel_outbox
           (id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, max_attempts, correlation_id)
    values (p_reply_id, p_tenant_id, p_message_id, v_message.account_id, v_message.provider, v_message.recipient_id,
            p_payload, p_max_attempts, v_message.correlation_id);
    update channels.channel_messages as message
       set status = 'executed',
           reply = null,
           last_error = null,
           is_executing = false,
           leased_until = null,
           updated_at = now()
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id;
end
$$;

COMMENT ON FUNCTION channels.enqueue_reply(p_tenant_id uuid, p_message_id uuid, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) IS 'Puts a reply into the outbox and ends its message, in the transaction of the caller: both or neither. The caller has locked the message.';

CREATE FUNCTION channels.executor_of(p_tenant_id uuid, p_account_id uuid) RETURNS TABLE(id uuid, kind text, url text, timeout_seconds integer, sealed_secret bytea, sentinel jsonb)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select executor.id, executor.kind, executor.url, executor.timeout_seconds, executor.sealed_secret,
               executor.sentinel
          from channels.channel_executors as executor
         where executor.tenant_id = p_tenant_id
           and (executor.account_id = p_account_id or executor.account_id is null)
         order by executor.account_id nulls last
         limit 1;
end
$$;

COMMENT ON FUNCTION channels.executor_of(p_tenant_id uuid, p_account_id uuid) IS 'Returns the executor of an account. The secret is sealed; the executing process has the master key.';

CREATE FUNCTION channels.fail_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply jsonb, p_error text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
declare
    v_now      constant timestamptz := now();
    v_retry_at constant timestamptz := case
                                           when p_reply is not null then v_now + interval '1 minute'
                                           when p_execution < 5
                                               then v_now + interval '1 minute' * power(2, p_execution - 1)
                                       end;
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_messages as message
       set status = 'dispatch_failed',
           reply = p_reply,
           last_error = left(p_error, 1000),
           is_executing = false,
           leased_until = v_retry_at,
           updated_at = v_now
     where message.tenant_id = p_tenant_id
       and message.id = p_message_id
       and message.executions = p_execution
       and message.status in ('accepted', 'dispatch_failed');
    return found;
end
$$;

COMMENT ON FUNCTION channels.fail_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply jsonb, p_error text) IS 'Records that a message could not be executed, or that its reply could not be enqueued and is kept. A kept reply is retried every minute. An execution is retried after 1, 2, 4 and 8 minutes; after that only the provider or an operator can retry it. Returns false and changes nothing if a newer execution has the message or the message has ended.';

CREATE FUNCTION channels.finish_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform
       from channels.channel_messages as message
      where message.tenant_id = p_tenant_id
        and message.id = p_message_id
        and message.executions = p_execution
        and message.status in ('accepted', 'dispatch_failed')
        for update;
    if not found then
        return false;
    end if;
    perform channels.enqueue_reply(p_tenant_id, p_message_id, p_reply_id, p_payload, p_max_attempts);
    return true;
end
$$;

COMMENT ON FUNCTION channels.finish_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) IS 'Ends a message with its reply. Returns false and changes nothing if a newer execution has the message or the message has ended.';

CREATE FUNCTION channels.link_sender(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_sender_id text, p_user_id text, p_role text, p_actor text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_id  uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into channels.channel_links as link (id, tenant_id, account_id, sender_id, user_id, role)
    values (p_id, p_tenant_id, p_account_id, p_sender_id, p_user_id, p_role)
    on conflict on constraint channel_links_one_per_sender do update
       set user_id = excluded.user_id,
           role = excluded.role,
           updated_at = v_now
    returning link.id into v_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'sender.linked', 'link:' || v_id, p_user_id || ' as ' || p_role);
    return v_id;
end
$$;

COMMENT ON FUNCTION channels.link_sender(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_sender_id text, p_user_id text, p_role text, p_actor text) IS 'Sets the user and role of a sender at an account. Returns the id of the link.';

CREATE FUNCTION channels.measure_replies() RETURNS TABLE(pending bigint, due bigint, over_a_minute bigint, over_ten_minutes bigint, over_an_hour bigint, oldest_seconds double precision, tried_before bigint, in_doubt bigint, sending bigint, dead bigint, unfinished_messages bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    return query
        select count(*) filter (where reply.status = 'pending'),
               count(*) filter (where reply.status = 'pending' and reply.next_attempt_at <= v_now),
               count(*) filter (where reply.created_at < v_now - interval '1 minute'),
               count(*) filter (where reply.created_at < v_now - interval '10 minutes'),
               count(*) filter (where reply.created_at < v_now - interval '1 hour'),
               coalesce(extract(epoch from v_now - min(reply.created_at)), 0)::double precision,
               count(*) filter (where reply.attempt_count > 0),
               count(*) filter (where reply.in_doubt_since is not null),
               count(*) filter (where reply.status = 'sending'),
               (select count(*) from channels.channel_outbox as dead where dead.status = 'dead'),
               (select count(*) from channels.channel_messages as message where message.leased_until is not null)
          from channels.channel_outbox as reply
         where reply.status in ('pending', 'sending');
end
$$;

COMMENT ON FUNCTION channels.measure_replies() IS 'Counts replies and unfinished messages over all tenants, for the metrics, without locking anything.';

CREATE FUNCTION channels.note_account(p_tenant_id uuid, p_account_id uuid, p_worker text, p_word text, p_pause interval, p_reason text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now   constant timestamptz := now();
    v_until constant timestamptz := v_now + least(p_pause, interval '1 day');
begin
    insert into execution.account_states (tenant_id, account_id)
    select account.tenant_id, account.id
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id
        on conflict do nothing;
    if p_word = 'waits' then
        update execution.account_states as state
           set wait_until = v_until,
               wait_reason = left(p_reason, 500)
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id
           and (state.wait_until is null or state.wait_until < v_until);
    elsif p_word = 'look_ups_wait' then
        update execution.account_states as state
           set next_look_up_at = v_until
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id
           and (state.next_look_up_at is null or state.next_look_up_at < v_until);
    elsif p_word in ('refused', 'login_refused') then
        perform execution.break_circuit(p_tenant_id, p_account_id, p_worker, p_reason, p_word = 'login_refused');
    elsif p_word = 'answers' then
        update execution.account_states as state
           set circuit_open_until = null,
               circuit_reason = null,
               circuit_openings = 0,
               probe_job_id = null,
               probe_until = null
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id
           and state.circuit_open_until is not null;
        if found then
            insert into tenancy.audit_log (tenant_id, actor, action, subject)
            values (p_tenant_id, p_worker, 'account.circuit_closed', 'account:' || p_account_id);
            perform execution.wake_jobs_of_circuit(p_tenant_id, p_account_id);
        end if;
    end if;
end
$$;

COMMENT ON FUNCTION channels.note_account(p_tenant_id uuid, p_account_id uuid, p_worker text, p_word text, p_pause interval, p_reason text) IS 'Records for all processes what an attempt has shown about the account: `waits` (no call for p_pause), `look_ups_wait`, `refused`, `login_refused` (no call before the secret is changed), or `answers` after a probe.';

CREATE FUNCTION channels.prune_messages(p_tenant_id uuid, p_older_than interval, p_limit integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_sort TO 'off'
    AS $$
declare
    v_before constant timestamptz := now() - p_older_than;
    v_ids    uuid[];
    v_id     uuid;
begin
    if p_tenant_id is null then
        raise exception 'p_tenant_id must not be null' using errcode = 'null_value_not_allowed';
    end if;
    if p_older_than is null or p_older_than < interval '0' or p_limit is null or p_limit < 1 then
        raise exception 'say how old a message must be, and how many to remove at most' using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(
        select old.id
          from channels.channel_messages as old
         where old.tenant_id = p_tenant_id
           and old.created_at < v_before
           and old.status <> 'accepted'
           and old.leased_until is null
           -- A message has at most one reply.
           and coalesce((select reply.status in ('sent', 'dead') and reply.updated_at < v_before
                           from channels.channel_outbox as reply
                          where reply.tenant_id = p_tenant_id
                            and reply.channel_message_id = old.id), true)
         order by old.created_at
         limit p_limit
           for update skip locked);
    foreach v_id in array v_ids loop
        delete from channels.channel_messages as message
         where message.tenant_id = p_tenant_id
           and message.id = v_id;
    end loop;
    return cardinality(v_ids)::bigint;
end
$$;

COMMENT ON FUNCTION channels.prune_messages(p_tenant_id uuid, p_older_than interval, p_limit integer) IS 'Deletes up to p_limit ended messages of a tenant that are older than p_older_than, with their replies. Messages with a reply that is not yet sent or dead stay.';

CREATE FUNCTION channels.put_executor(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_kind text, p_url text, p_timeout_seconds integer, p_sealed_secret bytea, p_required_role text, p_sentinel jsonb, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- The row lock serializes two calls at once: the second one replaces the executor of the first.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id for no key update;
    delete from channels.channel_executors as executor
     where executor.tenant_id = p_tenant_id
       and executor.account_id is not distinct from p_account_id;
    insert into channels.channel_executors
           (id, tenant_id, account_id, kind, url, timeout_seconds, sealed_secret, required_role, sentinel)
    values (p_id, p_tenant_id, p_account_id, p_kind, p_url, p_timeout_seconds, p_sealed_secret, p_required_role, p_sentinel);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'executor.set', 'executor:' || p_id, p_kind);
end
$$;

COMMENT ON FUNCTION channels.put_executor(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_kind text, p_url text, p_timeout_seconds integer, p_sealed_secret bytea, p_required_role text, p_sentinel jsonb, p_actor text) IS 'Sets the executor of an account, or with a null account of all accounts without one of their own.';

CREATE FUNCTION channels.receive_message(p_tenant_id uuid, p_account_id uuid, p_id uuid, p_reply_id uuid, p_provider_message_id text, p_sender_id text, p_recipient_id text, p_thread text, p_text text, p_correlation_id uuid, p_lease interval, p_max_attempts integer) RETURNS TABLE(message_id uuid, verdict text, execution integer, user_id text, role text, correlation_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
declare
    v_provider text;
    v_message  channels.channel_messages;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select account.provider
      into v_provider
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id;
    if not found then
        raise exception 'there is no such account' using errcode = 'no_data_found';
    end if;
    -- One statement, so that Postgres finds an earlier delivery by the index of the constraint.
    insert into channels.channel_messages as message
           (id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, thread, text, correlation_id)
    values (p_id, p_tenant_id, p_account_id, v_provider, p_provider_message_id, p_sender_id, p_recipient_id, p_thread, p_text,
            p_correlation_id)
    on conflict on constraint channel_messages_one_per_delivery do update
       set deliveries = message.deliveries + 1
    returning message.* into v_message;
    if v_message.deliveries > 1 then
        if v_message.status = 'dispatch_failed' and v_message.reply is not null then
            perform channels.enqueue_reply(p_tenant_id, v_message.id, p_reply_id, v_message.reply, p_max_attempts);
            return query select v_message.id, 'enqueued'::text, v_message.executions, v_message.user_id, v_message.role,
                                v_message.correlation_id;
            return;
        end if;
        if v_message.status not in ('accepted', 'dispatch_failed') or v_message.is_executing and v_message.leased_until > now() then
            return query select v_message.id, 'duplicate'::text, v_message.executions, v_message.user_id, v_message.role,
                                v_message.correlation_id;
            return;
        end if;
    end if;
    return query
        select v_message.id, admitted.verdict, admitted.execution, admitted.user_id, admitted.role, v_message.correlation_id
          from channels.admit_message(p_tenant_id, v_message.id, v_message.account_id, v_message.sender_id, p_lease)
               as admitted;
end
$$;

COMMENT ON FUNCTION channels.receive_message(p_tenant_id uuid, p_account_id uuid, p_id uuid, p_reply_id uuid, p_provider_message_id text, p_sender_id text, p_recipient_id text, p_thread text, p_text text, p_correlation_id uuid, p_lease interval, p_max_attempts integer) IS 'Records a message that a provider delivered and returns a verdict. `execute`: the caller executes it under this execution number until the lease ends. `denied`: the sender has no link or not the required role. `duplicate`: nothing to do. `enqueued`: the kept reply is in the outbox now.';

CREATE FUNCTION channels.recent_messages(p_tenant_id uuid, p_account_id uuid, p_sender_id text) RETURNS integer
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return (select count(*)::integer
              from (select from channels.channel_messages as message
                     where message.tenant_id = p_tenant_id
                       and message.account_id = p_account_id
                       and message.sender_id = p_sender_id
                       and message.created_at > now() - interval '1 minute'
                     limit 1000) as recent);
end
$$;

COMMENT ON FUNCTION channels.recent_messages(p_tenant_id uuid, p_account_id uuid, p_sender_id text) IS 'Counts the messages of a sender in the last minute, up to a thousand.';

CREATE FUNCTION channels.reclaim_replies(p_tenant_id uuid, p_lock_timeout interval, p_limit integer DEFAULT 1000) RETURNS TABLE(id uuid, channel_message_id uuid, correlation_id uuid, worker text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    AS $$
declare
    v_now   constant timestamptz := now();
    v_stale record;
begin
    for v_stale in
        select stale.id, stale.locked_by
          from channels.channel_outbox as stale
         where stale.tenant_id = p_tenant_id
           and stale.status = 'sending'
           and stale.locked_at < v_now - p_lock_timeout
         order by stale.locked_at
         limit p_limit
           for update skip locked
    loop
        return query
            update channels.channel_outbox as reply
               set status = 'pending',
                   in_doubt_since = v_now,
                   last_error = 'the dispatcher that was sending it went away',
                   next_attempt_at = v_now,
                   locked_at = null,
                   locked_by = null,
                   updated_at = v_now
             where reply.tenant_id = p_tenant_id
               and reply.id = v_stale.id
            returning reply.id, reply.channel_message_id, reply.correlation_id, v_stale.locked_by;
    end loop;
end
$$;

COMMENT ON FUNCTION channels.reclaim_replies(p_tenant_id uuid, p_lock_timeout interval, p_limit integer) IS 'Releases replies of a tenant whose lock is older than p_lock_timeout, because their dispatcher is gone. They become in doubt, because the attempt may have arrived.';

CREATE FUNCTION channels.record_delivery(p_tenant_id uuid, p_account_id uuid, p_reply_id uuid, p_provider_message_id text, p_status text, p_proves_action boolean, p_at timestamp with time zone, p_error text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_at  constant timestamptz := coalesce(p_at, v_now);
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_outbox as reply
       set provider_message_id = case when p_proves_action then coalesce(reply.provider_message_id, left(p_provider_message_id, 512))
                                      else reply.provider_message_id end,
           -- Reports can arrive out of order.
           delivery_status = case when reply.delivery_status_at > v_at then reply.delivery_status
                                  else left(p_status, 64) end,
           delivery_error = case when reply.delivery_status_at > v_at then reply.delivery_error
                                 else left(p_error, 1000) end,
           delivery_status_at = greatest(reply.delivery_status_at, v_at),
           -- For a dead reply this is the time at which it became dead.
           updated_at = case when reply.status = 'dead' then reply.updated_at else v_now end
     where reply.tenant_id = p_tenant_id
       and reply.account_id = p_account_id
       and reply.id = p_reply_id;
    return found;
end
$$;

COMMENT ON FUNCTION channels.record_delivery(p_tenant_id uuid, p_account_id uuid, p_reply_id uuid, p_provider_message_id text, p_status text, p_proves_action boolean, p_at timestamp with time zone, p_error text) IS 'Records a delivery report of a provider about a reply. A report that proves the arrival keeps the reply from being sent again. Returns false if the account has no such reply.';

CREATE FUNCTION channels.remove_executor(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from channels.channel_executors as executor where executor.tenant_id = p_tenant_id and executor.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'executor.removed', 'executor:' || p_id);
    return true;
end
$$;

COMMENT ON FUNCTION channels.remove_executor(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Removes an executor. Messages that find no other executor are refused from then on. Returns false if the tenant has no such executor.';

CREATE FUNCTION channels.requeue_replies(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_provider text, p_error_contains text, p_dead_before timestamp with time zone, p_dead_since timestamp with time zone, p_limit integer, p_actor text) RETURNS SETOF uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_id  uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    for v_id in
        select dead.id
          from channels.channel_outbox as dead
         where dead.tenant_id = p_tenant_id
           and dead.status = 'dead'
           and (p_id is null or dead.id = p_id)
           and (p_account_id is null or dead.account_id = p_account_id)
           and (p_provider is null or dead.provider = p_provider)
           and (p_error_contains is null or position(lower(p_error_contains) in lower(dead.last_error)) > 0)
           and (p_dead_before is null or dead.updated_at < p_dead_before)
           and (p_dead_since is null or dead.updated_at >= p_dead_since)
         order by dead.updated_at
         limit p_limit
           for update
    loop
        update channels.channel_outbox as reply
           set status = 'pending',
               attempt_count = 0,
               next_attempt_at = v_now,
               requeued_at = v_now,
               updated_at = v_now
         where reply.tenant_id = p_tenant_id
           and reply.id = v_id;
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (p_tenant_id, p_actor, 'reply.requeued', 'reply:' || v_id);
        return next v_id;
    end loop;
end
$$;

COMMENT ON FUNCTION channels.requeue_replies(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_provider text, p_error_contains text, p_dead_before timestamp with time zone, p_dead_since timestamp with time zone, p_limit integer, p_actor text) IS 'Makes dead replies of a tenant pending again, with all their attempts: the one with p_id, or up to p_limit that match. A null filter matches everything. Each one is audited.';

CREATE FUNCTION channels.require_reply() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if not exists (select from channels.channel_outbox as reply
                    where reply.tenant_id = new.tenant_id and reply.channel_message_id = new.id) then
        raise exception 'channels.channel_messages: a message is executed once its reply is in the outbox'
            using errcode = 'check_violation', constraint = tg_name;
    end if;
    return new;
end
$$;

COMMENT ON FUNCTION channels.require_reply() IS 'Trigger function: refuses the status `executed` for a message whose reply is not in channels.channel_outbox.';

CREATE FUNCTION channels.retry_message(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10s'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update channels.channel_messages as message
       set is_executing = false,
           leased_until = v_now,
           updated_at = v_now
     where message.tenant_id = p_tenant_id
       and message.id = p_id
       and message.status = 'dispatch_failed'
       and not (message.is_executing and message.leased_until > v_now);
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'message.retried', 'message:' || p_id);
    return true;
end
$$;

COMMENT ON FUNCTION channels.retry_message(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Makes a failed message due now, for an operator. Returns false if the tenant has no such failed message or the message is being executed.';

CREATE FUNCTION channels.settle_replies(p_tenant_ids uuid[], p_worker text, p_ids uuid[], p_claims integer[], p_verdicts text[], p_message_ids text[], p_errors text[], p_pauses interval[], p_in_doubt boolean[], p_accounts text[] DEFAULT '{}'::text[]) RETURNS TABLE(id uuid, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET lock_timeout TO '10s'
    AS $$
declare
    v_now constant timestamptz := now();
    v_noted record;
begin
    return query
        with settled as (
            update channels.channel_outbox as reply
               set status = case
                                when given.verdict = 'sent'
                                  or given.verdict <> 'release' and reply.provider_message_id is not null then 'sent'
                                when given.verdict = 'dead'
                                  or given.verdict = 'retry' and reply.attempt_count + 1 >= reply.max_attempts then 'dead'
                                else 'pending'
                            end,
                   attempt_count = reply.attempt_count + case when given.verdict in ('retry', 'dead') then 1 else 0 end,
                   next_attempt_at = case when given.verdict in ('retry', 'release') then v_now + given.pause
                                          else reply.next_attempt_at end,
                   last_error = case when given.verdict = 'sent' then reply.last_error
                                     else coalesce(left(given.error, 1000), reply.last_error) end,
                   in_doubt_since = case when given.verdict = 'sent'
                                           or given.verdict <> 'release' and reply.provider_message_id is not null then null
                                         when given.in_doubt then v_now
                                         else reply.in_doubt_since end,
                   provider_message_id = coalesce(left(given.message_id, 512), reply.provider_message_id),
                   sent_at = case when given.verdict = 'sent'
                                    or given.verdict <> 'release' and reply.provider_message_id is not null then v_now end,
                   locked_at = null,
                   locked_by = null,
                   updated_at = v_now
              from unnest(p_tenant_ids, p_ids, p_claims, p_verdicts, p_message_ids, p_errors, p_pauses, p_in_doubt)
                   as given (tenant_id, id, claim, verdict, message_id, error, pause, in_doubt)
             -- A lock implies the status `sending`. A condition on the status would make Postgres search the index of
             -- all pending and sending replies.
             where reply.tenant_id = given.tenant_id
               and reply.id = given.id
               and reply.locked_by = p_worker
               and reply.claims = given.claim
               and given.verdict in ('sent', 'retry', 'dead', 'release')
            returning reply.id, reply.status, reply.tenant_id, reply.last_error
        ), audited as (
            insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
            select settled.tenant_id, p_worker, 'reply.dead', 'reply:' || settled.id, settled.last_error
              from settled
             where settled.status = 'dead'
        )
        select settled.id, settled.status from settled;
    if array_remove(p_accounts, null) <> '{}' then
        for v_noted in
            select reply.tenant_id, reply.account_id, given.account, max(given.pause) as pause, max(given.error) as error
              from unnest(p_tenant_ids, p_ids, p_accounts, p_pauses, p_errors) as given (tenant_id, id, account, pause, error)
                   join channels.channel_outbox as reply on reply.tenant_id = given.tenant_id and reply.id = given.id
             where given.account is not null
             group by reply.tenant_id, reply.account_id, given.account
             order by reply.tenant_id, reply.account_id, given.account
        loop
            perform channels.note_account(
                v_noted.tenant_id, v_noted.account_id, p_worker, v_noted.account, v_noted.pause, v_noted.error);
        end loop;
    end if;
end
$$;

COMMENT ON FUNCTION channels.settle_replies(p_tenant_ids uuid[], p_worker text, p_ids uuid[], p_claims integer[], p_verdicts text[], p_message_ids text[], p_errors text[], p_pauses interval[], p_in_doubt boolean[], p_accounts text[]) IS 'Records results under their claims and returns the new status of each reply; replies that are no longer held under that claim do not change. Verdicts: `sent`; `retry` after p_pauses, or dead after the last attempt; `dead`; `release`, which counts nothing. p_accounts has what each has shown about its account, as for note_account. A failed reply that has provably arrived becomes sent. One call may combine several tenants: each result names the tenant of its reply.';

CREATE FUNCTION channels.take_look_up(p_tenant_id uuid, p_account_id uuid, p_every interval, OUT wait_seconds double precision, OUT every_seconds double precision) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now   constant timestamptz := now();
    v_every interval;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select coalesce(interval '1 minute' / (account.limits ->> 'look_ups_per_minute')::integer, p_every)
      into v_every
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id;
    wait_seconds := 0;
    every_seconds := coalesce(extract(epoch from v_every)::double precision, 0);
    if v_every is null then
        return;
    end if;
    insert into execution.account_states as state (tenant_id, account_id, next_look_up_at)
    values (p_tenant_id, p_account_id, v_now + v_every)
        on conflict (tenant_id, account_id) do update
       set next_look_up_at = excluded.next_look_up_at
     where state.next_look_up_at is null or state.next_look_up_at <= v_now;
    if found then
        return;
    end if;
    select greatest(extract(epoch from state.next_look_up_at - v_now)::double precision, 0.001)
      into wait_seconds
      from execution.account_states as state
     where state.tenant_id = p_tenant_id
       and state.account_id = p_account_id;
end
$$;

COMMENT ON FUNCTION channels.take_look_up(p_tenant_id uuid, p_account_id uuid, p_every interval, OUT wait_seconds double precision, OUT every_seconds double precision) IS 'Takes the right to one look-up at an account, which all processes share: one in p_every, unless the limits of the account say otherwise. wait_seconds is 0, or the time until the next look-up; every_seconds is the time from one to the next.';

CREATE FUNCTION channels.tenants_with_expired_leases(p_keeps_reply boolean, p_limit integer) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select message.tenant_id
      from channels.channel_messages as message
     where message.leased_until < now()
       and (message.reply is not null) = p_keeps_reply
     group by message.tenant_id
     order by min(message.leased_until)
     limit p_limit
$$;

COMMENT ON FUNCTION channels.tenants_with_expired_leases(p_keeps_reply boolean, p_limit integer) IS 'Chooses up to p_limit tenants with messages whose lease has expired, the oldest lease first, without locking anything: messages that keep a reply, or messages to execute.';

CREATE FUNCTION channels.tenants_with_old_messages(p_older_than interval) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select tenant.id
      from tenancy.tenants as tenant
     where (select message.created_at
              from channels.channel_messages as message
             where message.tenant_id = tenant.id
             order by message.created_at
             limit 1) < now() - p_older_than
$$;

COMMENT ON FUNCTION channels.tenants_with_old_messages(p_older_than interval) IS 'Chooses the tenants that have messages older than p_older_than, without locking anything.';

CREATE FUNCTION channels.tenants_with_stale_replies(p_lock_timeout interval, p_limit integer) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    -- Only the index of locks has the order of the inner query. Without the inner query, Postgres may group by tenant
    -- while it reads all pending replies in the index for claims.
    select stale.tenant_id
      from (select reply.tenant_id, reply.locked_at
              from channels.channel_outbox as reply
             where reply.status = 'sending'
               and reply.locked_at < now() - p_lock_timeout
             order by reply.locked_at) as stale
     group by stale.tenant_id
     order by min(stale.locked_at)
     limit p_limit
$$;

COMMENT ON FUNCTION channels.tenants_with_stale_replies(p_lock_timeout interval, p_limit integer) IS 'Chooses up to p_limit tenants with replies whose lock is older than p_lock_timeout, the oldest lock first, without locking anything.';

CREATE FUNCTION channels.unlink_sender(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from channels.channel_links as link where link.tenant_id = p_tenant_id and link.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'sender.unlinked', 'link:' || p_id);
    return true;
end
$$;

COMMENT ON FUNCTION channels.unlink_sender(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Removes the link of a sender. Returns false if the tenant has no such link.';

CREATE FUNCTION events.claim_events(p_generation bigint, p_processor_id text, p_batch_size integer) RETURNS TABLE(tenant_id uuid, id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer, created_at timestamp with time zone, delivered_to text[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    v_ids bigint[];
begin
    if (select max(registered.generation) from events.sink_sets as registered) is distinct from p_generation then
        raise exception 'the sinks of generation % are not the registered ones', coalesce(p_generation::text, 'null')
            using errcode = 'PR004',
                  hint = 'Run `postrider relay sinks` to see the registered ones.';
    end if;
    -- Claim first, then read in a statement of its own. A single statement would claim events that were committed after
    -- its snapshot, not find them when it reads the outbox, and keep them claimed without returning them. The function of
    -- the contract returns no tenant, so the id alone finds its rows.
    v_ids := array(select claimed.id from m10_recovery.claim_outbox_events(p_processor_id, p_batch_size) as claimed);
    return query
        select event.tenant_id,
               event.id,
               event.aggregate_type,
               event.aggregate_id,
               event.event_type,
               event.payload,
               event.retry_count,
               event.created_at,
               array(select noted.sink
                       from events.outbox_deliveries as noted
                      where noted.tenant_id = event.tenant_id
                        and noted.event_id = event.id)
          from m10_recovery.outbox as event
         where event.id = any (v_ids);
end
$$;

COMMENT ON FUNCTION events.claim_events(p_generation bigint, p_processor_id text, p_batch_size integer) IS 'Claims events of all tenants for a relay that delivers to the sinks of this generation. For each event it also returns its tenant, when it was published and which sinks have it. Raises PR004 if other sinks are registered.';

CREATE FUNCTION events.close_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text, p_note text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_event record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'closing an event needs a note that says why' using errcode = 'invalid_parameter_value';
    end if;
    select event.processed_at
      into v_event
      from m10_recovery.outbox as event
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id
       for update;
    if not found then
        return 'unknown';
    end if;
    if v_event.processed_at is not null then
        return 'processed';
    end if;

    update m10_recovery.outbox as event
       set processed_at = v_now,
           claimed_at = null,
           claimed_by = null,
           last_error = left('closed by ' || p_actor || ': ' || p_note, 2000)
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'event.closed', 'event:' || p_event_id, p_note);
    return 'done';
end
$$;

COMMENT ON FUNCTION events.close_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text, p_note text) IS 'Ends an event without delivering it, with a note that says why. A processor that holds the event loses its claim. Returns `done`, `unknown` or `processed`.';

CREATE FUNCTION events.complete_events(p_generation bigint, p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    lock table events.sink_sets in row share mode;
    if (select max(registered.generation) from events.sink_sets as registered) is distinct from p_generation then
        return false;
    end if;
    perform events.complete_outbox_events(p_processor_id, p_tenant_ids, p_event_ids, p_errors);
    return true;
end
$$;

COMMENT ON FUNCTION events.complete_events(p_generation bigint, p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) IS 'Completes events like events.complete_outbox_events, if the sinks of this generation are the registered ones. Otherwise it returns false and changes nothing: the events were delivered to other sinks, and the relay releases them.';

CREATE FUNCTION events.complete_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    v_now constant timestamptz := now();
    v_succeeded constant bigint := (select count(*)
                                      from unnest(p_event_ids, p_errors) as done (id, error)
                                     where done.error is null);
    v_completed bigint;
begin
    update m10_recovery.outbox as event
       set processed_at = v_now
      from unnest(p_tenant_ids, p_event_ids, p_errors) as done (tenant_id, id, error)
     where done.error is null
       and event.tenant_id = done.tenant_id
       and event.id = done.id
       and event.claimed_by = p_processor_id
       and event.processed_at is null;
    get diagnostics v_completed = row_count;

    -- Some events were completed before, are not held, or do not exist. The function of the contract decides which of
    -- these is an error.
    if v_completed <> v_succeeded then
        perform m10_recovery.complete_outbox_event(done.id, p_processor_id, true)
           from unnest(p_event_ids, p_errors) as done (id, error)
          where done.error is null;
    end if;
    if v_succeeded < cardinality(p_event_ids) then
        perform m10_recovery.complete_outbox_event(done.id, p_processor_id, false, done.error)
           from unnest(p_event_ids, p_errors) as done (id, error)
          where done.error is not null;
    end if;
end
$$;

COMMENT ON FUNCTION events.complete_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) IS 'Completes many events of one processor, of any tenants, under the rules of complete_outbox_event: all of them or none. A null error is a success. One statement per event would cost more than the event.';

CREATE FUNCTION events.note_deliveries(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_sinks text[]) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into events.outbox_deliveries (tenant_id, event_id, sink)
    select event.tenant_id, event.id, noted.sink
      from unnest(p_tenant_ids, p_event_ids, p_sinks) as noted (tenant_id, event_id, sink)
      join m10_recovery.outbox as event on event.tenant_id = noted.tenant_id and event.id = noted.event_id
     where event.claimed_by = p_processor_id
       and event.processed_at is null
     order by event.tenant_id, event.id, noted.sink
        on conflict do nothing
$$;

COMMENT ON FUNCTION events.note_deliveries(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_sinks text[]) IS 'Records the sinks that have an event which the processor holds.';

CREATE FUNCTION events.outbox_backlog(p_stuck_after integer) RETURNS TABLE(pending bigint, stuck bigint, oldest_ready_seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select (select count(*)
              from (select from m10_recovery.outbox as event where event.processed_at is null limit 100000) as counted),
           (select count(*)
              from (select
                      from m10_recovery.outbox as event
                     where event.processed_at is null
                       and event.retry_count > 0
                       and event.retry_count > p_stuck_after
                     limit 100000) as counted),
           coalesce((select extract(epoch from now() - coalesce(event.process_after, event.created_at))
                       from m10_recovery.outbox as event
                      where event.processed_at is null
                        and coalesce(event.process_after, '-infinity'::timestamptz) <= now()
                        and (event.claimed_at is null or event.claimed_at < now() - interval '5 minutes')
                      order by coalesce(event.process_after, '-infinity'::timestamptz), event.id
                      limit 1), 0)::double precision
$$;

COMMENT ON FUNCTION events.outbox_backlog(p_stuck_after integer) IS 'Counts the pending and stuck events of all tenants, each up to 100,000 to stay cheap, and returns the age of the oldest ready event.';

CREATE FUNCTION events.prune_outbox(p_tenant_id uuid, p_processed_before timestamp with time zone, p_after_id bigint DEFAULT 0, p_window integer DEFAULT 1000) RETURNS TABLE(removed bigint, last_id bigint, done boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_ids bigint[];
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_window is null or p_window < 1 then
        raise exception 'the window must hold at least one id' using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(select event.id
                     from m10_recovery.outbox as event
                    where event.tenant_id = p_tenant_id
                      and event.id > p_after_id
                    order by event.id
                    limit p_window);
    -- Ids rise with time: all events after one that was published after the limit were processed after it, too.
    delete from m10_recovery.outbox as event
     where event.tenant_id = p_tenant_id
       and event.id = any (v_ids)
       and event.processed_at < p_processed_before;
    get diagnostics v_removed = row_count;
    return query
        select v_removed,
               coalesce(v_ids[cardinality(v_ids)], p_after_id),
               cardinality(v_ids) < p_window
               or exists (select
                            from m10_recovery.outbox as event
                           where event.tenant_id = p_tenant_id
                             and event.id = v_ids[cardinality(v_ids)]
                             and event.created_at >= p_processed_before);
end
$$;

COMMENT ON FUNCTION events.prune_outbox(p_tenant_id uuid, p_processed_before timestamp with time zone, p_after_id bigint, p_window integer) IS 'Deletes events of one tenant that were processed before the given time, within one window of ids, so that each call is short. Call it again from `last_id` until `done`.';

CREATE FUNCTION events.register_sinks(p_sinks jsonb, p_actor text) RETURNS TABLE(generation bigint, sinks jsonb, registered_at timestamp with time zone, registered_by text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if not exists (select from events.sink_sets) then
        -- If two relays start at once, the second one waits here and then sees the sinks of the first.
        lock table events.sink_sets in exclusive mode;
        insert into events.sink_sets (generation, sinks, registered_by)
        select 1, p_sinks, p_actor
         where not exists (select from events.sink_sets);
    end if;
    return query
        select registered.generation, registered.sinks, registered.registered_at, registered.registered_by
          from events.sink_sets as registered
         order by registered.generation desc
         limit 1;
end
$$;

COMMENT ON FUNCTION events.register_sinks(p_sinks jsonb, p_actor text) IS 'Registers the sinks if none are registered yet, and returns the registered ones.';

CREATE FUNCTION events.release_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_delays_ms bigint[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    update m10_recovery.outbox as event
       set process_after = v_now + released.delay_ms * interval '1 millisecond',
           claimed_at = null,
           claimed_by = null
      from unnest(p_tenant_ids, p_event_ids, p_delays_ms) as released (tenant_id, id, delay_ms)
     where event.tenant_id = released.tenant_id
       and event.id = released.id
       and event.claimed_by = p_processor_id
       and event.processed_at is null;
end
$$;

COMMENT ON FUNCTION events.release_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_delays_ms bigint[]) IS 'Releases claimed events that were not tried, because their sink was busy or the relay stops. It counts no failure; each event is ready again after its delay.';

CREATE FUNCTION events.replace_sinks(p_sinks jsonb, p_actor text) RETURNS TABLE(generation bigint, sinks jsonb, registered_at timestamp with time zone, registered_by text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_registered events.sink_sets;
begin
    lock table events.sink_sets in exclusive mode;
    select registered.*
      into v_registered
      from events.sink_sets as registered
     order by registered.generation desc
     limit 1;
    if v_registered.sinks is distinct from p_sinks then
        insert into events.sink_sets (generation, sinks, registered_by)
        values (coalesce(v_registered.generation, 0) + 1, p_sinks, p_actor)
        returning * into v_registered;
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (tenancy.system_tenant_id(), p_actor, 'sinks.replaced', 'sinks:' || v_registered.generation);
    end if;
    return query
        select v_registered.generation, v_registered.sinks, v_registered.registered_at, v_registered.registered_by;
end
$$;

COMMENT ON FUNCTION events.replace_sinks(p_sinks jsonb, p_actor text) IS 'Registers these sinks in place of the registered ones, and returns the registered ones. Completions under way commit first; complete_events refuses later ones under the old sinks.';

CREATE FUNCTION events.require_tenant_of_event() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform from tenancy.tenants as tenant where tenant.id = new.tenant_id for key share;
    if not found then
        raise exception 'there is no tenant %', new.tenant_id
            using errcode = 'foreign_key_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return new;
end
$$;

COMMENT ON FUNCTION events.require_tenant_of_event() IS 'Trigger function: refuses an event of a tenant that does not exist. The tenant cannot be removed before the transaction ends; tenancy.refuse_removal_with_events protects it afterwards.';

CREATE FUNCTION events.retry_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_event record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select event.processed_at, event.claimed_at
      into v_event
      from m10_recovery.outbox as event
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id
       for update;
    if not found then
        return 'unknown';
    end if;
    if v_event.processed_at is not null then
        return 'processed';
    end if;
    if v_event.claimed_at >= v_now - interval '5 minutes' then
        return 'claimed';
    end if;

    update m10_recovery.outbox as event
       set process_after = v_now
     where event.tenant_id = p_tenant_id
       and event.id = p_event_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'event.retried', 'event:' || p_event_id);
    return 'done';
end
$$;

COMMENT ON FUNCTION events.retry_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text) IS 'Makes a pending event ready now. `retry_count` stays, because it is the history of the event. Returns `done`, `unknown`, `processed` or `claimed`.';

CREATE FUNCTION events.tenants_with_events() RETURNS SETOF uuid
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select from m10_recovery.outbox as event where event.tenant_id = tenant.id)
$$;

COMMENT ON FUNCTION events.tenants_with_events() IS 'Returns the tenants that have events, the system tenant included. Retention calls prune_outbox for each of them.';

CREATE FUNCTION execution.address_hashes(p_tenant_id uuid, p_email text, p_phone text, p_external_id text) RETURNS bytea[]
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select coalesce(array_agg(sha256(key.outer_pad || sha256(key.inner_pad || convert_to(address.text, 'UTF8')))), '{}')
      from execution.suppression_keys as key
           cross join unnest(array['email:' || lower(p_email), 'phone:' || p_phone, 'id:' || p_external_id]) as address (text)
     where key.tenant_id = p_tenant_id
       and address.text is not null
$$;

COMMENT ON FUNCTION execution.address_hashes(p_tenant_id uuid, p_email text, p_phone text, p_external_id text) IS 'Returns HMAC-SHA256 of each address that is not null, under the key of the tenant. Returns nothing if the tenant has no key yet.';

CREATE FUNCTION execution.archive_run(p_tenant_id uuid, p_run_id uuid, p_before timestamp with time zone, p_exported_to text, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_run record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_before is null or p_before > now() - interval '1 day' then
        raise exception 'p_before must be at least a day ago' using errcode = 'invalid_parameter_value';
    end if;
    select run.*
      into v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id
       and run.finished_at < p_before;
    if not found then
        return false;
    end if;
    insert into execution.run_archives
           (tenant_id, run_id, exported_to, jobs_completed, jobs_dead, sent, called, posted, failed, skipped, missing)
    select p_tenant_id, p_run_id, p_exported_to,
           (select count(*) from execution.job_queue as job
             where job.tenant_id = p_tenant_id and job.run_id = p_run_id and job.status = 'completed'),
           (select count(*) from execution.job_queue as job
             where job.tenant_id = p_tenant_id and job.run_id = p_run_id and job.status = 'dead'),
           launch.sent, launch.called, launch.posted, launch.failed, launch.skipped, launch.missing
      from execution.verify_launch(p_tenant_id, p_run_id) as launch
        on conflict do nothing;
    if not found then
        return false;
    end if;
    perform execution.audit(p_tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor, 'run.archived',
                            case when p_exported_to is null then 'not exported' else 'exported to ' || p_exported_to end);
    return true;
end
$$;

COMMENT ON FUNCTION execution.archive_run(p_tenant_id uuid, p_run_id uuid, p_before timestamp with time zone, p_exported_to text, p_actor text) IS 'Freezes the certificate of a run that ended before p_before. From then on the run gets no jobs, and its rows may be deleted. Returns false if the run is archived already or has not ended before p_before.';

CREATE FUNCTION execution.audit(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_id uuid, p_outbox_id uuid, p_actor text, p_action text, p_note text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into execution.campaign_audit_log
           (tenant_id, campaign_id, phase_id, run_id, job_id, outbox_id, actor, action, note)
    values (p_tenant_id, p_campaign_id, p_phase_id, p_run_id, p_job_id, p_outbox_id, p_actor, p_action, p_note);
end
$$;

COMMENT ON FUNCTION execution.audit(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_id uuid, p_outbox_id uuid, p_actor text, p_action text, p_note text) IS 'Adds a line to the audit log of campaigns.';

CREATE FUNCTION execution.await_reservations(p_tenant_id uuid, p_campaign_id uuid, p_phase text) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_run_id uuid;
    v_job_id uuid;
    v_in_flight bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select run.id
      into v_run_id
      from execution.campaign_phases as phase
           join execution.campaign_runs as run
             on run.tenant_id = phase.tenant_id and run.phase_id = phase.id
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
     order by run.number desc
     limit 1;
    -- Stop waiting for a worker that hangs inside its transaction. The caller can ask again.
    perform set_config('lock_timeout', '10s', true);
    -- Lock one send job at a time and release it at once: holding several locks while waiting for another can deadlock.
    for v_job_id in
        select job.id
          from execution.job_queue as job
         where job.tenant_id = p_tenant_id
           and job.run_id = v_run_id
           and job.status = 'locked'
    loop
        begin
            perform
               from execution.job_queue as job
              where job.tenant_id = p_tenant_id
                and job.id = v_job_id
                for no key update;
            raise sqlstate 'PR000';
        exception when sqlstate 'PR000' then
            null; -- the rollback to the savepoint released the lock
        end;
    end loop;
    select coalesce(sum(progress.in_flight), 0)::bigint
      into v_in_flight
      from execution.run_progress(p_tenant_id, array[v_run_id]) as progress;
    return v_in_flight;
end
$$;

COMMENT ON FUNCTION execution.await_reservations(p_tenant_id uuid, p_campaign_id uuid, p_phase text) IS 'Waits until every transaction that began to reserve items of the phase before its pause has committed. Returns the number of calls in flight.';

CREATE FUNCTION execution.begin_erasure(p_tenant_id uuid, p_lead_id uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update execution.leads as lead
       set erasing_since = v_now,
           suppressed_at = coalesce(lead.suppressed_at, v_now),
           suppression_reason = coalesce(lead.suppression_reason, 'erased'),
           updated_at = v_now
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       and lead.erasing_since is null;
    return found or exists (select from execution.leads as lead where lead.tenant_id = p_tenant_id and lead.id = p_lead_id);
end
$$;

COMMENT ON FUNCTION execution.begin_erasure(p_tenant_id uuid, p_lead_id uuid) IS 'First step of an erasure: suppresses the lead. Commit it before erase_lead. Returns false if the tenant has no such lead.';

CREATE FUNCTION execution.begin_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[]) RETURNS TABLE(tenant_id uuid, job_id uuid, outbox_id uuid, item_id uuid, idempotency_key text, verdict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_begun record;
    v_last integer := 0;
begin
    v_begun := execution.begin_windows(p_tenant_ids, p_worker_id, p_job_ids, p_attempts, p_first, p_counts, p_outbox_ids,
                                       p_recipients, p_message_hashes, p_verdicts, p_reasons);
    for n in 1..cardinality(p_job_ids) loop
        if v_begun.windows[n] <> 'open' then
            return query select p_tenant_ids[n], p_job_ids[n], null::uuid, null::uuid, null::text, v_begun.windows[n];
        else
            return query
                select p_tenant_ids[n], p_job_ids[n], v_begun.outbox_ids[i], v_begun.item_ids[i], v_begun.idempotency_keys[i],
                       coalesce(v_begun.verdicts[i], 'reserved')
                  from generate_series(v_last + 1, v_last + p_counts[n]) as i;
        end if;
        v_last := v_last + p_counts[n];
    end loop;
end
$$;

COMMENT ON FUNCTION execution.begin_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[]) IS 'Reserves items as begin_windows does, and returns a row per item whose verdict is reserved or the status of the item. A window that is not open returns one row with the verdict lost or paused.';

CREATE FUNCTION execution.begin_windows(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[], OUT windows text[], OUT outbox_ids uuid[], OUT item_ids uuid[], OUT idempotency_keys text[], OUT verdicts text[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_job record;
    v_now constant timestamptz := now();
    v_suppressed uuid[];
    v_erased uuid[];
    v_end integer;
    v_place integer;
    -- One entry per window: the values that its items share.
    v_ends integer[] := '{}'::integer[];
    v_workspace_ids uuid[] := array_fill(null::uuid, array[cardinality(p_job_ids)]);
    v_run_ids uuid[] := v_workspace_ids;
    v_channels text[] := array_fill(null::text, array[cardinality(p_job_ids)]);
    v_providers text[] := v_channels;
    v_prefixes text[] := v_channels;
    v_suffixes text[] := v_channels;
    -- One entry per item: the number of its window; null if the window is lost or paused.
    v_places integer[] := '{}'::integer[];
    v_reasons text[] := p_reasons;
    v_inserted integer;
    v_waiting record;
    v_again uuid[] := '{}'::uuid[];
begin
    perform tenancy.limit_idle_time();
    -- A reservation must survive a crash, whatever the settings of the login are.
    perform tenancy.require_durable_commit();
    -- Each statement needs its own snapshot: otherwise a committed pause would go unseen.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'items are reserved at the isolation level read committed, not %', current_setting('transaction_isolation')
            using errcode = 'invalid_parameter_value', hint = 'Begin with: begin isolation level read committed.';
    end if;
    if not array_remove(p_verdicts, null) <@ array['failed', 'skipped'] then
        raise exception 'an item that is not called is failed or skipped' using errcode = 'invalid_parameter_value';
    end if;
    windows := array_fill('lost'::text, array[cardinality(p_job_ids)]);
    outbox_ids := p_outbox_ids;
    item_ids := '{}';
    verdicts := p_verdicts;
    v_end := 0;
    for n in 1..cardinality(p_job_ids) loop
        v_end := v_end + p_counts[n];
        v_ends := v_ends || v_end;
    end loop;

    -- The share lock keeps the send job with this worker until the reservations are committed.
    for v_job in
        select wanted.n, wanted.first, wanted.count, job.*
          from unnest(p_tenant_ids, p_job_ids, p_attempts, p_first, p_counts) with ordinality
               as wanted (tenant_id, job_id, attempt, first, count, n)
               cross join lateral (
                   select job.id, job.tenant_id, job.workspace_id, job.run_id, run.channel, run.provider, run.key_part,
                          run.scheduled_for, job.item_ids[wanted.first : wanted.first + wanted.count - 1] as items
                     from execution.job_queue as job
                          join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
                    where job.tenant_id = wanted.tenant_id
                      and job.id = wanted.job_id
                      and job.status = 'locked'
                      and job.locked_by = p_worker_id
                      and job.attempts = wanted.attempt
                      for share of job) as job
         order by wanted.n
    loop
        if cardinality(v_job.items) is distinct from v_job.count then
            raise exception 'send job % has no items % to %', v_job.id, v_job.first, v_job.first + v_job.count - 1
                using errcode = 'invalid_parameter_value';
        end if;
        v_end := v_ends[v_job.n] - v_job.count;
        if v_end > cardinality(item_ids) then
            item_ids := item_ids || array_fill(null::uuid, array[v_end - cardinality(item_ids)]);
            v_places := v_places || array_fill(null::integer, array[v_end - cardinality(v_places)]);
        end if;
        v_suppressed := array(
            select lead.id
              from execution.leads as lead
             where lead.tenant_id = v_job.tenant_id
               and lead.id = any (v_job.items)
               and lead.suppressed_at is not null);
        for i in 1..v_job.count * least(cardinality(v_suppressed), 1) loop
            if v_job.items[i] = any (v_suppressed) and verdicts[v_end + i] is null then
                verdicts[v_end + i] := 'skipped';
                v_reasons[v_end + i] := 'the lead is suppressed';
            end if;
        end loop;
        -- The worker may have read the lead before its erasure, so its address and the reason are not stored.
        if cardinality(v_suppressed) > 0 then
            v_erased := array(
                select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = v_job.tenant_id
                   and lead.id = any (v_suppressed)
                   and lead.erasing_since is not null);
            for i in 1..v_job.count * least(cardinality(v_erased), 1) loop
                if v_job.items[i] = any (v_erased) then
                    verdicts[v_end + i] := 'skipped';
                    v_reasons[v_end + i] := 'erased';
                    p_recipients[v_end + i] := null;
                end if;
            end loop;
        end if;
        windows[v_job.n] := 'open';
        v_workspace_ids[v_job.n] := v_job.workspace_id;
        v_run_ids[v_job.n] := v_job.run_id;
        v_channels[v_job.n] := v_job.channel;
        v_providers[v_job.n] := v_job.provider;
        v_prefixes[v_job.n] := v_job.run_id::text || '|';
        v_suffixes[v_job.n] := '|' || v_job.key_part || '|' || execution.key_time(v_job.scheduled_for);
        item_ids := item_ids || v_job.items;
        v_places := v_places || array_fill(v_job.n::integer, array[v_job.count]);
    end loop;

    -- Read the phases after the last send job is locked, in a statement with its own snapshot. A pause that has
    -- committed is seen here; a pause that commits later waits for these locks before it answers
    -- (await_reservations).
    for v_place in
        select begun.n::integer
          from unnest(p_tenant_ids, v_run_ids) with ordinality as begun (tenant_id, run_id, n)
               cross join lateral (
                   select phase.status
                     from execution.campaign_runs as run
                          join execution.campaign_phases as phase
                            on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                    where run.tenant_id = begun.tenant_id
                      and run.id = begun.run_id
                   offset 0) as phase
         where phase.status <> 'in_progress'
    loop
        windows[v_place] := 'paused';
        v_places := array_replace(v_places, v_place, null);
    end loop;

    -- The same key as outbox_key, with the parts that a window shares computed once.
    idempotency_keys := array(
        select encode(sha256(convert_to(v_prefixes[item.place] || item.id::text || v_suffixes[item.place], 'UTF8')), 'hex')
          from (select unnest(item_ids) as id, unnest(v_places) as place) as item);

    begin
        insert into execution.channel_outbox
               (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
                status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
        select item.id, p_tenant_ids[item.place], v_workspace_ids[item.place], v_run_ids[item.place], p_job_ids[item.place],
               v_channels[item.place], v_providers[item.place], item.item_id, item.recipient, item.key,
               coalesce(item.verdict, 'queued'), item.verdict is not distinct from 'skipped', left(item.reason, 2000),
               p_worker_id, p_attempts[item.place], item.message_hash, case when item.verdict is not null then v_now end
          from (select unnest(outbox_ids) as id, unnest(v_places) as place, unnest(item_ids) as item_id,
                       unnest(idempotency_keys) as key, unnest(p_recipients) as recipient,
                       unnest(p_message_hashes) as message_hash, unnest(verdicts) as verdict, unnest(v_reasons) as reason) as item
         where item.place is not null;
        get diagnostics v_inserted = row_count;
        if v_inserted <> cardinality(array_remove(v_places, null)) then
            raise exception 'the insert did not add one row per item' using errcode = 'assert_failure';
        end if;
        return;
    exception when unique_violation then
        -- The failed insert was rolled back; the insert below handles the conflicts.
    end;
    insert into execution.channel_outbox
           (id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key,
            status, skipped, error, reserved_by, attempt, message_hash, finalized_at)
    select item.id, p_tenant_ids[item.place], v_workspace_ids[item.place], v_run_ids[item.place], p_job_ids[item.place],
           v_channels[item.place], v_providers[item.place], item.item_id, item.recipient, item.key,
           coalesce(item.verdict, 'queued'), item.verdict is not distinct from 'skipped', left(item.reason, 2000),
           p_worker_id, p_attempts[item.place], item.message_hash, case when item.verdict is not null then v_now end
      from (select unnest(outbox_ids) as id, unnest(v_places) as place, unnest(item_ids) as item_id,
                   unnest(idempotency_keys) as key, unnest(p_recipients) as recipient,
                   unnest(p_message_hashes) as message_hash, unnest(verdicts) as verdict, unnest(v_reasons) as reason) as item
     where item.place is not null
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing;
    -- One by one, through the index of keys and the primary key: items are put back rarely.
    for v_waiting in
        select item.tenant_id, item.id, wanted.place, wanted.recipient, wanted.message_hash, wanted.verdict, wanted.reason
          from unnest(v_places, idempotency_keys, p_recipients, p_message_hashes, verdicts, v_reasons)
               as wanted (place, key, recipient, message_hash, verdict, reason)
               cross join lateral (
                   select known.tenant_id, known.id
                     from execution.channel_outbox as known
                    where known.tenant_id = p_tenant_ids[wanted.place]
                      and known.workspace_id = v_workspace_ids[wanted.place]
                      and known.idempotency_key = wanted.key
                      and known.status = 'queued'
                      and known.in_doubt_since is null
                      and known.reserved_by is null
                   offset 0) as item
    loop
        update execution.channel_outbox as item
           set status = coalesce(v_waiting.verdict, 'queued'),
               skipped = v_waiting.verdict is not distinct from 'skipped',
               error = left(v_waiting.reason, 2000),
               recipient = v_waiting.recipient,
               message_hash = v_waiting.message_hash,
               reserved_by = p_worker_id,
               attempt = p_attempts[v_waiting.place],
               moved_to_account_id = null,
               created_at = v_now,
               finalized_at = case when v_waiting.verdict is not null then v_now end
         where item.tenant_id = v_waiting.tenant_id
           and item.id = v_waiting.id
           and item.status = 'queued'
           and item.in_doubt_since is null
           and item.reserved_by is null;
        if found then
            v_again := v_again || v_waiting.id;
        end if;
    end loop;

    -- Decide which rows belong to this call. A row under the id that the caller generated is its own: either it was
    -- inserted above, or an earlier call committed it and the response was lost. The provider was not called for
    -- it, because no worker received the reservation.
    select array_agg(coalesce(item.id, wanted.id) order by wanted.n),
           array_agg(case
                         when item.id is null then 'missing'
                         when item.status = 'queued' and item.id = any (v_again) then null
                         when item.status = 'queued' and item.id = wanted.id and item.reserved_by = p_worker_id
                              and item.attempt = p_attempts[wanted.place] and item.in_doubt_since is null
                              then null
                         else item.status
                     end order by wanted.n)
      into outbox_ids, verdicts
      from unnest(outbox_ids, v_places, idempotency_keys) with ordinality as wanted (id, place, key, n)
           left join lateral (
               select known.id, known.status, known.reserved_by, known.attempt, known.in_doubt_since
                 from execution.channel_outbox as known
                where known.tenant_id = p_tenant_ids[wanted.place]
                  and known.workspace_id = v_workspace_ids[wanted.place]
                  and known.idempotency_key = wanted.key
               offset 0) as item on true;
end
$$;

COMMENT ON FUNCTION execution.begin_windows(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[], OUT windows text[], OUT outbox_ids uuid[], OUT item_ids uuid[], OUT idempotency_keys text[], OUT verdicts text[]) IS 'Reserves items of send jobs, of any number of tenants, that the worker holds: one outbox row per item, with its idempotency key. A key that exists is reserved again only if its item was put back. Returns one row of arrays: windows is open, lost (the worker does not hold the send job) or paused (the phase is not in progress) for each window; an item of an open window is reserved if its verdict is null, else the verdict is its status.';

CREATE FUNCTION execution.break_circuit(p_tenant_id uuid, p_account_id uuid, p_actor text, p_reason text, p_until_secret boolean) RETURNS double precision
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now constant timestamptz := now();
    v_until timestamptz;
begin
    update execution.account_states as state
       set circuit_open_until = v_now + case
                                            -- Only a new secret ends this.
                                            when p_until_secret then interval '10 years'
                                            else least(30 * 2 ^ least(state.circuit_openings, 10), 600) * interval '1 second'
                                        end,
           circuit_openings = state.circuit_openings + 1,
           circuit_reason = left(p_reason, 500),
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = p_tenant_id
       and state.account_id = p_account_id
       and (state.circuit_open_until is null or state.circuit_open_until <= v_now
            or p_until_secret and state.circuit_open_until < v_now + interval '1 year')
 returning state.circuit_open_until
      into v_until;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (p_tenant_id, p_actor, 'account.circuit_opened', 'account:' || p_account_id,
                case when p_until_secret then 'until its secret is changed: ' || left(p_reason, 500) else
                'until ' || to_char(v_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"') || ': ' || left(p_reason, 500) end);
    else
        select state.circuit_open_until
          into v_until
          from execution.account_states as state
         where state.tenant_id = p_tenant_id
           and state.account_id = p_account_id;
    end if;
    return extract(epoch from v_until - v_now)::double precision;
end
$$;

COMMENT ON FUNCTION execution.break_circuit(p_tenant_id uuid, p_account_id uuid, p_actor text, p_reason text, p_until_secret boolean) IS 'Opens the circuit of an account for 30 seconds, doubled at each further opening up to ten minutes, until a call is answered; or until the secret is changed, because the provider refused the login and may lock the account. Otherwise an open circuit is not changed. Returns the number of seconds for which it is open.';

CREATE FUNCTION execution.claim_doubts(p_tenant_id uuid, p_resolver_id text, p_providers text[], p_limit integer, p_lease interval, p_except_accounts uuid[] DEFAULT '{}'::uuid[]) RETURNS TABLE(outbox_id uuid, tenant_id uuid, workspace_id uuid, run_id uuid, job_id uuid, channel text, account_id uuid, provider text, idempotency_key text, recipient_id uuid, recipient text, message_hash bytea, reserved_at timestamp with time zone, doubted_since timestamp with time zone, quiet_until timestamp with time zone, look integer, looked_at timestamp with time zone, content jsonb, settings jsonb, sealed_secret bytea, limits jsonb, secret_is_newer boolean, lead jsonb, is_suppressed boolean, repeated_at timestamp with time zone, echo text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(btrim(p_resolver_id), '') = '' then
        raise exception 'a resolver must name itself to claim doubts'
            using errcode = 'invalid_parameter_value', hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    return query
        with due as (
            select doubt.tenant_id, doubt.outbox_id
              from execution.doubts as doubt
             where doubt.tenant_id = p_tenant_id
               and not doubt.is_for_person
               and doubt.next_look_at <= v_now
               and (doubt.held_until is null or doubt.held_until < v_now)
               and doubt.provider = any (p_providers)
               and doubt.account_id <> all (p_except_accounts)
             order by doubt.next_look_at
             limit p_limit
               for update skip locked
        ), held as (
            update execution.doubts as doubt
               set looks = doubt.looks + 1,
                   held_by = p_resolver_id,
                   held_until = v_now + p_lease
              from due
             where doubt.tenant_id = p_tenant_id
               and doubt.outbox_id = due.outbox_id
         returning doubt.tenant_id, doubt.outbox_id, doubt.account_id, doubt.provider, doubt.looks, doubt.repeated_at
        )
        select item.id, item.tenant_id, item.workspace_id, item.run_id, item.job_id, item.channel, held.account_id,
               held.provider, item.idempotency_key, item.recipient_id, item.recipient, item.message_hash, item.created_at,
               item.in_doubt_since, item.in_doubt_since + run.quiet_time, held.looks, v_now, asset.content, account.settings,
               account.sealed_secret, account.limits, account.secret_set_at > item.created_at,
               case
                   when lead.id is not null
                       then jsonb_build_object('id', lead.id, 'external_id', lead.external_id, 'email', lead.email,
                                               'phone', lead.phone, 'timezone', lead.timezone,
                                               'attributes', lead.attributes)
               end,
               lead.suppressed_at is not null
               or exists (select
                            from execution.leads as other
                           where other.tenant_id = lead.tenant_id
                             and other.workspace_id = lead.workspace_id
                             and lower(other.email) = lower(lead.email)
                             and other.suppressed_at is not null
                             and item.channel = 'email')
               or exists (select
                            from execution.leads as other
                           where other.tenant_id = lead.tenant_id
                             and other.workspace_id = lead.workspace_id
                             and other.phone = lead.phone
                             and other.suppressed_at is not null
                             and item.channel = 'voice'),
               held.repeated_at,
               (select callback.message_id
                  from execution.provider_callbacks as callback
                 where callback.tenant_id = item.tenant_id
                   and callback.account_id = held.account_id
                   and callback.idempotency_key = item.idempotency_key
                   and callback.proves_action
                 order by callback.received_at
                 limit 1)
          from held
               join execution.channel_outbox as item on item.tenant_id = p_tenant_id and item.id = held.outbox_id
               join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
               join execution.assets as asset on asset.tenant_id = item.tenant_id and asset.id = run.asset_id
               left join tenancy.provider_accounts as account
                      on account.tenant_id = p_tenant_id
                     and account.id = held.account_id
               left join execution.leads as lead on lead.tenant_id = item.tenant_id and lead.id = item.recipient_id
         where item.in_doubt_since is not null;
end
$$;

COMMENT ON FUNCTION execution.claim_doubts(p_tenant_id uuid, p_resolver_id text, p_providers text[], p_limit integer, p_lease interval, p_except_accounts uuid[]) IS 'Claims items in doubt of a tenant that are due for a look, of the given providers, for the length of the lease. The number of the look is the fencing token: a resolver whose claim was taken over changes nothing.';

CREATE FUNCTION execution.claim_queued_jobs(p_tenant_id uuid, p_worker_id text, p_limit integer DEFAULT 10, p_except_runs uuid[] DEFAULT '{}'::uuid[]) RETURNS TABLE(job_id uuid, tenant_id uuid, workspace_id uuid, run_id uuid, job_type text, attempts integer, max_attempts integer, item_ids uuid[], channel text, asset_id uuid, provider_account_id uuid, provider text, scheduled_for timestamp with time zone, key_part text, correlation_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
    v_served_at timestamptz;
    v_ids uuid[];
    v_id uuid;
    v_job record;
    v_run_ids uuid[] := '{}'::uuid[];
    v_run_id uuid;
    v_run record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(btrim(p_worker_id), '') = '' then
        raise exception 'a worker must name itself to claim send jobs'
            using errcode = 'invalid_parameter_value', hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    v_ids := array(
        select job.id
          from execution.job_queue as job
         where job.tenant_id = p_tenant_id
           and job.status = 'queued'
           and job.run_after <= v_now
           -- The case hides the condition from the planner, so that it reads the index in order and stops at the limit.
           and case when cardinality(p_except_runs) = 0 then true else job.run_id <> all (p_except_runs) end
         order by job.run_after, job.id
         limit p_limit
           for update skip locked);
    if cardinality(v_ids) = 0 then
        return;
    end if;

    foreach v_id in array v_ids loop
        update execution.job_queue as job
           set status = 'locked',
               attempts = job.attempts + 1,
               locked_by = p_worker_id,
               locked_at = v_now,
               waits_for = null
         where job.tenant_id = p_tenant_id
           and job.id = v_id
     returning job.run_id, job.attempts
          into v_job;
        perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_id, null, p_worker_id, 'job.locked',
                                'attempt ' || v_job.attempts);
        if v_job.run_id <> all (v_run_ids) then
            v_run_ids := v_run_ids || v_job.run_id;
        end if;
    end loop;
    -- Ordered by id, so that two concurrent claims cannot deadlock.
    for v_run_id in select started.id from unnest(v_run_ids) as started (id) order by started.id loop
        update execution.campaign_runs as run
           set status = 'running',
               started_at = v_now
         where run.tenant_id = p_tenant_id
           and run.id = v_run_id
           and run.status = 'queued'
     returning run.campaign_id, run.phase_id
          into v_run;
        if found then
            perform execution.audit(p_tenant_id, v_run.campaign_id, v_run.phase_id, v_run_id, null, null, p_worker_id,
                                    'run.running', null);
        end if;
    end loop;
    -- Record the time of the claim. Another worker that is serving the tenant at the same time updates this row, so a locked row is
    -- skipped.
    perform
       from execution.claim_order as place
      where place.tenant_id = p_tenant_id
        for update skip locked;
    if found then
        v_served_at := clock_timestamp();
        update execution.claim_order as place
           set last_claim_at = v_served_at
         where place.tenant_id = p_tenant_id;
    end if;

    return query
        select job.id, p_tenant_id, job.workspace_id, job.run_id, job.job_type, job.attempts, job.max_attempts, job.item_ids,
               job.channel, job.asset_id, job.provider_account_id, job.provider, job.scheduled_for, job.key_part,
               job.correlation_id
          from unnest(v_ids) as claimed (id)
               cross join lateral (
                   select job.id, job.workspace_id, job.run_id, job.job_type, job.attempts, job.max_attempts, job.item_ids,
                          run.channel, run.asset_id, run.provider_account_id, run.provider, run.scheduled_for, run.key_part,
                          run.correlation_id
                     from execution.job_queue as job
                          join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
                    where job.tenant_id = p_tenant_id
                      and job.id = claimed.id
                   offset 0) as job;
end
$$;

COMMENT ON FUNCTION execution.claim_queued_jobs(p_tenant_id uuid, p_worker_id text, p_limit integer, p_except_runs uuid[]) IS 'Claims up to p_limit send jobs of a tenant that are due, longest due first, and records the time. tenants_with_due_jobs chooses the tenants. The attempt counts at the claim, so that a send job that kills its worker does not return for ever.';

CREATE FUNCTION execution.close_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_account_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    update execution.account_states as state
       set circuit_open_until = null,
           circuit_reason = null,
           circuit_openings = 0,
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       and state.circuit_open_until is not null;
    if not found then
        return;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_worker_id, 'account.circuit_closed', 'account:' || v_account_id);
    perform execution.wake_jobs_of_circuit(p_tenant_id, v_account_id);
end
$$;

COMMENT ON FUNCTION execution.close_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean) IS 'Closes the circuit of an account after a call was answered. Send jobs that waited for it are due at once.';

CREATE FUNCTION execution.complete_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval DEFAULT '00:01:00'::interval) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_tenant_id, p_job_id, p_worker_id, p_retry_after, null);
end
$$;

COMMENT ON FUNCTION execution.complete_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval) IS 'Ends a send job whose items were all tried, and returns its status: completed, dead, or failed with a retry while an item is in doubt.';

CREATE FUNCTION execution.control_phase(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_trigger text, p_expected text, p_actor text, p_reason text DEFAULT NULL::text, p_job_size integer DEFAULT 500) RETURNS TABLE(outcome text, status text, kind text, reason text, sequence bigint, run_id uuid, items bigint, second_messages bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_goal constant text := execution.phase_goal(p_trigger);
    v_reason constant text := nullif(left(btrim(p_reason), 2000), '');
    v_phase record;
    v_run record;
    v_run_id uuid;
    v_doubts bigint;
    v_sequence bigint;
    v_second bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if v_goal is null then
        raise exception 'a phase is not controlled by `%`', coalesce(p_trigger, 'null')
            using errcode = 'invalid_parameter_value', hint = 'Use start, pause, resume, retry, rerun, complete or fail.';
    end if;
    if coalesce(btrim(p_actor), '') = '' then
        raise exception 'p_actor must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    -- Lock the campaign before its phase, as every function does. The counter is read under the lock.
    select campaign.sequence
      into v_sequence
      from execution.campaigns as campaign
     where campaign.tenant_id = p_tenant_id
       and campaign.id = p_campaign_id
       for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.*
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
       for no key update;
    if not found then
        raise exception 'the campaign has no phase `%`', p_phase
            using errcode = 'no_data_found',
                  hint = (select 'It has: ' || string_agg(phase.phase, ', ' order by phase.position) || '.'
                            from execution.campaign_phases as phase
                           where phase.tenant_id = p_tenant_id and phase.campaign_id = p_campaign_id);
    end if;
    select run.id, run.status, run.intended
      into v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.phase_id = v_phase.id
     order by run.number desc
     limit 1;

    if v_phase.kind = 'delivery' and p_trigger in ('complete', 'fail') then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'a delivery ends when its items have; `' || p_trigger || '` is for phases that another service does',
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    if v_phase.status = v_goal then
        return query select 'unchanged', v_phase.status, v_phase.kind, null::text, v_sequence, v_run.id, v_run.intended::bigint,
                            null::bigint;
        return;
    end if;
    if p_expected is not null and p_expected <> v_phase.status then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'the phase is ' || v_phase.status || ', not ' || p_expected || ' as expected',
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    if execution.phase_target(p_trigger, v_phase.status) is null then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'a phase that is ' || v_phase.status || ' cannot ' || p_trigger, v_sequence, v_run.id,
                            v_run.intended::bigint, null::bigint;
        return;
    end if;

    if p_trigger = 'start' then
        v_sequence := execution.start_phase(p_tenant_id, p_campaign_id, v_phase.id, gen_random_uuid(), p_job_size, p_actor, v_reason);
    elsif p_trigger = 'retry' and v_phase.kind = 'delivery' then
        v_run_id := execution.create_run(p_tenant_id, v_phase.id, gen_random_uuid(), 'retry', p_job_size, p_actor);
        if v_run_id is null then
            select count(*)
              into v_doubts
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.run_id = any (execution.runs_since_all(p_tenant_id, v_phase.id))
               and item.status = 'queued';
            if v_doubts > 0 then
                return query select 'conflict', v_phase.status, v_phase.kind,
                                    'nothing of it failed for certain; ' || v_doubts || ' items are in doubt and must be settled first',
                                    v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
                return;
            end if;
        end if;
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, 'retry', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', coalesce((select run.intended
                                    from execution.campaign_runs as run
                                   where run.tenant_id = p_tenant_id
                                     and run.id = v_run_id), 0),
                'reason', v_reason)));
        if v_run_id is null then
            -- Every item in doubt was settled as successful and nothing is left to send: tend_phase ends the phase.
            update execution.campaign_phases set due = 'end' where tenant_id = p_tenant_id and id = v_phase.id;
        end if;
    elsif p_trigger = 'rerun' and v_phase.kind = 'delivery' then
        v_run_id := execution.create_run(p_tenant_id, v_phase.id, gen_random_uuid(), 'rerun', p_job_size, p_actor);
        -- Count the recipients that got the message, or may have, and get it again.
        select count(distinct item.recipient_id)
          into v_second
          from execution.job_queue as job
               cross join lateral unnest(job.item_ids) as wanted (id)
               join execution.channel_outbox as item
                 on item.tenant_id = job.tenant_id and item.recipient_id = wanted.id
         where job.tenant_id = p_tenant_id
           and job.run_id = v_run_id
           and item.run_id in (select run.id
                                 from execution.campaign_runs as run
                                where run.tenant_id = p_tenant_id
                                  and run.phase_id = v_phase.id
                                  and run.id <> v_run_id)
           and item.status in ('sent', 'called', 'posted', 'queued');
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, 'rerun', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', (select run.intended
                                    from execution.campaign_runs as run
                                   where run.tenant_id = p_tenant_id
                                     and run.id = v_run_id),
                'secondMessages', v_second, 'reason', v_reason)));
    else
        if p_trigger = 'complete' then
            perform execution.note_progress_of(p_tenant_id, p_campaign_id, v_phase.id, 100);
        end if;
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, p_trigger, v_run.id, p_actor,
            jsonb_strip_nulls(jsonb_build_object('reason', v_reason)));
        if p_trigger = 'pause' then
            perform execution.shelve_jobs(p_tenant_id, v_run.id);
        elsif p_trigger = 'resume' then
            perform execution.unshelve_jobs(p_tenant_id, v_run.id);
            if v_run.status in ('completed', 'partial', 'failed') then
                -- The last items of the run ended while the phase was paused: tend_phase ends the phase.
                update execution.campaign_phases set due = 'end' where tenant_id = p_tenant_id and id = v_phase.id;
            end if;
        end if;
    end if;
    return query
        select 'changed', phase.status, phase.kind, null::text, v_sequence, run.id, run.intended::bigint, v_second
          from execution.campaign_phases as phase
               left join lateral (
                   select newest.id, newest.intended
                     from execution.campaign_runs as newest
                    where newest.tenant_id = phase.tenant_id
                      and newest.phase_id = phase.id
                    order by newest.number desc
                    limit 1) as run on true
         where phase.tenant_id = p_tenant_id
           and phase.id = v_phase.id;
end
$$;

COMMENT ON FUNCTION execution.control_phase(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_trigger text, p_expected text, p_actor text, p_reason text, p_job_size integer) IS 'Applies a trigger (start, pause, resume, retry, rerun, complete or fail) to a phase of the tenant. outcome is changed; unchanged if the phase is already in the state that the trigger asks for, and then nothing is written; or conflict, with the reason. After a pause has committed, await_reservations waits for reservations that began before it.';

CREATE FUNCTION execution.count_items(p_tenant_id uuid, p_job_id uuid) RETURNS TABLE(intended integer, succeeded integer, failed integer, skipped integer, in_doubt integer, missing integer)
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
begin
    return query
        select job.intended, items.succeeded, items.failed, items.skipped, items.in_doubt, job.intended - items.known
          from (select cardinality(item_ids) as intended
                  from execution.job_queue
                 where tenant_id = p_tenant_id
                   and id = p_job_id) as job,
               (select count(*) filter (where status in ('sent', 'called', 'posted'))::integer as succeeded,
                       count(*) filter (where status = 'failed')::integer as failed,
                       count(*) filter (where status = 'skipped')::integer as skipped,
                       count(*) filter (where status = 'queued' and (reserved_by is not null or in_doubt_since is not null))::integer
                           as in_doubt,
                       -- An item that was put back is tried again like one that was never begun.
                       count(*) filter (where status <> 'queued' or reserved_by is not null or in_doubt_since is not null)::integer
                           as known
                  from execution.channel_outbox
                 where tenant_id = p_tenant_id
                   and job_id = p_job_id) as items;
end
$$;

COMMENT ON FUNCTION execution.count_items(p_tenant_id uuid, p_job_id uuid) IS 'Counts the items of a send job by result.';

CREATE FUNCTION execution.create_asset(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_channel text, p_content jsonb, p_actor text) RETURNS TABLE(id uuid, version integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_newest record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Create one asset at a time per workspace, so that versions have no gaps. The lock is on a row that only this
    -- tenant can reach: any client that guesses the number of an advisory lock could hold it.
    perform
       from tenancy.workspaces as workspace
      where workspace.tenant_id = p_tenant_id
        and workspace.id = p_workspace_id
        for no key update;
    select asset.id, asset.version, asset.channel, asset.content
      into v_newest
      from execution.assets as asset
     where asset.tenant_id = p_tenant_id
       and asset.workspace_id = p_workspace_id
       and asset.name = p_name
     order by asset.version desc
     limit 1;
    if v_newest.channel = p_channel and v_newest.content = p_content then
        return query select v_newest.id, v_newest.version;
        return;
    end if;
    insert into execution.assets (id, tenant_id, workspace_id, name, version, channel, content)
    values (p_id, p_tenant_id, p_workspace_id, p_name, coalesce(v_newest.version, 0) + 1, p_channel, p_content);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'asset.created', 'asset:' || p_id, p_name);
    return query select p_id, coalesce(v_newest.version, 0) + 1;
end
$$;

COMMENT ON FUNCTION execution.create_asset(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_channel text, p_content jsonb, p_actor text) IS 'Creates the next version of an asset of the tenant. Returns the newest version instead if its channel and content are the same.';

CREATE FUNCTION execution.create_campaign(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_auto_advance boolean, p_phases jsonb, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_phase jsonb;
    v_position integer := 0;
    v_kind text;
    v_channel text;
    v_asset_id uuid;
    v_asset_channel text;
    v_list_id uuid;
    v_account_id uuid;
    v_failover_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if jsonb_typeof(p_phases) is distinct from 'array' or jsonb_array_length(p_phases) not between 1 and 100 then
        raise exception 'a campaign has between 1 and 100 phases' using errcode = 'invalid_parameter_value';
    end if;
    insert into execution.campaigns (id, tenant_id, workspace_id, name, auto_advance)
    values (p_id, p_tenant_id, p_workspace_id, p_name, p_auto_advance);
    perform execution.audit(p_tenant_id, p_id, null, null, null, null, p_actor, 'campaign.created', p_name);

    for v_phase in select value from jsonb_array_elements(p_phases) loop
        v_position := v_position + 1;
        v_kind := coalesce(v_phase ->> 'kind', 'delivery');
        v_channel := v_phase ->> 'channel';
        v_asset_id := null;
        v_list_id := null;
        v_account_id := null;
        v_failover_id := null;
        if v_kind = 'delivery' then
            select asset.id, asset.channel
              into v_asset_id, v_asset_channel
              from execution.assets as asset
             where asset.tenant_id = p_tenant_id
               and asset.workspace_id = p_workspace_id
               and asset.id = (v_phase ->> 'asset_id')::uuid;
            if not found then
                raise exception 'phase `%`: there is no asset %', v_phase ->> 'phase', coalesce(v_phase ->> 'asset_id', '(none)')
                    using errcode = 'no_data_found', hint = 'Create the asset first, and name its id.';
            end if;
            if v_asset_channel is distinct from v_channel then
                raise exception 'phase `%`: the asset is for channel %, the phase for %', v_phase ->> 'phase',
                                v_asset_channel, coalesce(v_channel, '(none)')
                    using errcode = 'invalid_parameter_value', hint = 'Choose an asset of the phase''s channel.';
            end if;
            if v_phase ->> 'list' is not null then
                select list.id
                  into v_list_id
                  from execution.lead_lists as list
                 where list.tenant_id = p_tenant_id
                   and list.workspace_id = p_workspace_id
                   and list.name = v_phase ->> 'list';
                if not found then
                    raise exception 'phase `%`: there is no list `%`', v_phase ->> 'phase', v_phase ->> 'list'
                        using errcode = 'no_data_found', hint = 'Import one with `postrider campaign import --list NAME FILE`.';
                end if;
            elsif v_channel <> 'social' then
                raise exception 'phase `%` names no list', v_phase ->> 'phase'
                    using errcode = 'invalid_parameter_value', hint = 'Say whom it addresses with "list".';
            end if;
            select account.id
              into v_account_id
              from tenancy.provider_accounts as account
             where account.tenant_id = p_tenant_id
               and account.workspace_id = p_workspace_id
               and account.name = v_phase ->> 'provider_account';
            if not found then
                raise exception 'phase `%`: there is no provider account `%`', v_phase ->> 'phase',
                                coalesce(v_phase ->> 'provider_account', '(none)')
                    using errcode = 'no_data_found', hint = 'Add one with `postrider accounts add`.';
            end if;
            if v_phase ->> 'failover_account' is not null then
                select account.id
                  into v_failover_id
                  from tenancy.provider_accounts as account
                 where account.tenant_id = p_tenant_id
                   and account.workspace_id = p_workspace_id
                   and account.name = v_phase ->> 'failover_account';
                if not found then
                    raise exception 'phase `%`: there is no provider account `%` to fail over to', v_phase ->> 'phase',
                                    v_phase ->> 'failover_account'
                        using errcode = 'no_data_found', hint = 'Add one with `postrider accounts add`.';
                end if;
                if v_failover_id = v_account_id then
                    raise exception 'phase `%` fails over to the account that it uses anyway', v_phase ->> 'phase'
                        using errcode = 'invalid_parameter_value', hint = 'Name another account, or none.';
                end if;
            end if;
        end if;
        insert into execution.campaign_phases
               (id, tenant_id, workspace_id, campaign_id, position, phase, kind, channel, asset_id, list_id,
                provider_account_id, failover_account_id, failure_tolerance, scheduled_for, quiet_time)
        values ((v_phase ->> 'id')::uuid, p_tenant_id, p_workspace_id, p_id, v_position, v_phase ->> 'phase', v_kind,
                v_channel, v_asset_id, v_list_id, v_account_id, v_failover_id,
                coalesce((v_phase ->> 'failure_tolerance')::numeric, 0.05),
                (v_phase ->> 'scheduled_for')::timestamptz,
                coalesce(make_interval(secs => (v_phase ->> 'quiet_time_seconds')::double precision),
                         interval '11 minutes'));
    end loop;
end
$$;

COMMENT ON FUNCTION execution.create_campaign(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_auto_advance boolean, p_phases jsonb, p_actor text) IS 'Creates a campaign of the tenant with its phases, all or nothing. An error names the phase that it is about.';

CREATE FUNCTION execution.create_run(p_tenant_id uuid, p_phase_id uuid, p_run_id uuid, p_cause text, p_job_size integer, p_actor text) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_phase record;
    v_audience uuid[];
    v_members bigint;
begin
    if p_job_size is null or p_job_size not between 1 and 10000 then
        raise exception 'a send job has between 1 and 10000 items, not %', coalesce(p_job_size::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    select phase.*, asset.version as asset_version, account.provider
      into strict v_phase
      from execution.campaign_phases as phase
           join execution.assets as asset
             on asset.tenant_id = phase.tenant_id and asset.id = phase.asset_id
           join tenancy.provider_accounts as account
             on account.tenant_id = phase.tenant_id and account.id = phase.provider_account_id
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;

    -- The audience, ordered by id. Of several leads with the same address only the first is addressed, so that a
    -- person who is in a list twice gets one message. A social phase without a list is one post.
    if p_cause = 'retry' then
        -- Exclude recipients that got the message in any of these runs, or may have.
        select array_agg(failed.recipient_id order by failed.recipient_id), count(*)
          into v_audience, v_members
          from (select item.recipient_id
                  from execution.channel_outbox as item
                 where item.tenant_id = p_tenant_id
                   and item.run_id = any (execution.runs_since_all(p_tenant_id, p_phase_id))
                 group by item.recipient_id
                having bool_and(item.status = 'failed')) as failed;
        if v_members = 0 then
            return null;
        end if;
    elsif v_phase.list_id is null then
        v_audience := array[v_phase.asset_id];
        v_members := 1;
    else
        select array_agg(audience.id order by audience.id) filter (where audience.is_first), count(*)
          into v_audience, v_members
          from (select lead.id,
                       case v_phase.channel
                           when 'email' then lead.email is null
                                or row_number() over (partition by lower(lead.email) order by lead.id) = 1
                           when 'voice' then lead.phone is null
                                or row_number() over (partition by lead.phone order by lead.id) = 1
                           else true
                       end as is_first
                  from execution.lead_list_members as member
                       join execution.leads as lead
                         on lead.tenant_id = member.tenant_id and lead.id = member.lead_id
                 where member.tenant_id = p_tenant_id
                   and member.list_id = v_phase.list_id) as audience;
    end if;
    if v_members = 0 then
        raise exception 'the list of phase `%` is empty', v_phase.phase
            using errcode = 'invalid_parameter_value', hint = 'Import leads with `postrider campaign import`.';
    end if;

    insert into execution.campaign_runs
           (id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id, provider_account_id, provider,
            failover_account_id, scheduled_for, quiet_time, key_part, intended, same_address, number, cause, correlation_id)
    values (p_run_id, p_tenant_id, v_phase.workspace_id, v_phase.campaign_id, v_phase.id, v_phase.channel, v_phase.asset_id,
            v_phase.provider_account_id, v_phase.provider, v_phase.failover_account_id, v_phase.scheduled_for, v_phase.quiet_time,
            case v_phase.channel
                when 'email' then v_phase.asset_id::text
                when 'voice' then v_phase.asset_version::text
                else 'social'
            end,
            cardinality(v_audience), v_members - cardinality(v_audience),
            (select coalesce(max(run.number), 0) + 1
               from execution.campaign_runs as run
              where run.tenant_id = p_tenant_id
                and run.phase_id = p_phase_id),
            p_cause, gen_random_uuid());

    insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, run_after, item_ids)
    select gen_random_uuid(), p_tenant_id, v_phase.workspace_id, p_run_id, part + 1,
           case v_phase.channel
               when 'email' then 'email_send_batch'
               when 'voice' then 'voice_call_batch'
               else 'social_post_batch'
           end,
           coalesce(v_phase.scheduled_for, now()),
           v_audience[part * p_job_size + 1 : (part + 1) * p_job_size]
      from generate_series(0, (cardinality(v_audience) - 1) / p_job_size) as part;

    -- Check first: an insert alone would wait for a worker that is updating the row of this tenant.
    insert into execution.claim_order (tenant_id)
    select p_tenant_id
     where not exists (select from execution.claim_order where tenant_id = p_tenant_id)
        on conflict do nothing;
    perform execution.audit(p_tenant_id, v_phase.campaign_id, v_phase.id, p_run_id, null, null, p_actor, 'run.deployed',
                            cardinality(v_audience) || ' items');
    return p_run_id;
end
$$;

COMMENT ON FUNCTION execution.create_run(p_tenant_id uuid, p_phase_id uuid, p_run_id uuid, p_cause text, p_job_size integer, p_actor text) IS 'Creates a run of a delivery and its send jobs: of the whole audience or, for a retry, of the items that certainly failed. Returns null if a retry has no such items. The caller has locked the campaign.';

CREATE FUNCTION execution.deploy_campaign(p_tenant_id uuid, p_campaign_id uuid, p_phase text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_run_id uuid DEFAULT NULL::uuid, p_job_size integer DEFAULT 500) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_actor constant text := coalesce(nullif(btrim(p_actor), ''), session_user::text);
    v_run_id constant uuid := coalesce(p_run_id, gen_random_uuid());
    v_phase record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- With this lock, two concurrent deployments create one run.
    perform
       from execution.campaigns
      where tenant_id = p_tenant_id
        and id = p_campaign_id
        for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.*
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and (phase.phase = p_phase
            -- Without a name: the phase that is in progress or paused, else the first that was not started.
            or p_phase is null
               and phase.position = (select candidate.position
                                       from execution.campaign_phases as candidate
                                      where candidate.tenant_id = p_tenant_id
                                        and candidate.campaign_id = p_campaign_id
                                        and candidate.status in ('in_progress', 'paused', 'not_started')
                                      order by candidate.status = 'not_started', candidate.position
                                      limit 1))
       for update of phase;
    if not found then
        if p_phase is null then
            raise exception 'every phase of the campaign was deployed already'
                using errcode = 'invalid_parameter_value',
                      hint = '`postrider campaign status` shows how they stand; `rerun` sends a phase again.';
        end if;
        raise exception 'the campaign has no phase `%`', p_phase
            using errcode = 'no_data_found',
                  hint = (select 'It has: ' || string_agg(phase.phase, ', ' order by phase.position) || '.'
                            from execution.campaign_phases as phase
                           where phase.tenant_id = p_tenant_id and phase.campaign_id = p_campaign_id);
    end if;
    if v_phase.kind <> 'delivery' then
        raise exception 'phase `%` is done by another service and is not deployed', v_phase.phase
            using errcode = 'invalid_parameter_value', hint = 'Deploy a phase that is a delivery, or start this one.';
    end if;
    if v_phase.status in ('in_progress', 'paused') then
        return (select run.id
                  from execution.campaign_runs as run
                 where run.tenant_id = p_tenant_id
                   and run.phase_id = v_phase.id
                 order by run.number desc
                 limit 1);
    end if;
    if v_phase.status <> 'not_started' then
        raise exception 'phase `%` is % and is not deployed twice', v_phase.phase, v_phase.status
            using errcode = 'invalid_parameter_value',
                  hint = case v_phase.status
                             when 'failed' then '`retry` sends what failed.'
                             else '`rerun` sends it to everybody again.'
                         end;
    end if;
    perform execution.start_phase(p_tenant_id, p_campaign_id, v_phase.id, v_run_id, p_job_size, v_actor);
    return v_run_id;
end
$$;

COMMENT ON FUNCTION execution.deploy_campaign(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_actor text, p_run_id uuid, p_job_size integer) IS 'Deploys a phase of a campaign of the tenant, or without a name the next one, and returns its run. A phase that is in progress or paused is not deployed again; its newest run is returned.';

CREATE FUNCTION execution.doubt_leftovers(p_tenant_id uuid, p_job_id uuid, p_actor text) RETURNS integer
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_count integer;
begin
    -- Settlements lock items in the order of their ids too, so that the two cannot deadlock.
    with leftover as (
        select item.tenant_id, item.id
          from execution.channel_outbox as item
         where item.tenant_id = p_tenant_id
           and item.job_id = p_job_id
           and item.status = 'queued'
           and item.in_doubt_since is null
           and item.reserved_by is not null
         order by item.id
           for no key update
    ), doubted as (
        update execution.channel_outbox as item
           set in_doubt_since = v_now,
               error = 'the worker that reserved it is gone'
          from leftover
         where item.tenant_id = p_tenant_id
           and item.id = leftover.id
           and item.status = 'queued'
           and item.in_doubt_since is null
           and item.reserved_by is not null
     returning item.id, item.run_id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select p_tenant_id, doubted.run_id, p_job_id, doubted.id, p_actor, 'item.in_doubt',
           'the worker that reserved it is gone'
      from doubted;
    get diagnostics v_count = row_count;
    return v_count;
end
$$;

COMMENT ON FUNCTION execution.doubt_leftovers(p_tenant_id uuid, p_job_id uuid, p_actor text) IS 'Marks the reserved items of a send job as in doubt, because the worker that reserved them is gone. Returns their number.';

CREATE FUNCTION execution.doubted_since(p_status text, p_in_doubt_since timestamp with time zone, p_reserved_by text, p_attempt integer, p_created_at timestamp with time zone, p_job_status text, p_locked_by text, p_locked_at timestamp with time zone, p_job_attempts integer) RETURNS timestamp with time zone
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN (p_status <> 'queued'::text) THEN NULL::timestamp with time zone WHEN (p_in_doubt_since IS NOT NULL) THEN p_in_doubt_since WHEN (p_reserved_by IS NULL) THEN NULL::timestamp with time zone WHEN ((p_job_status = 'locked'::text) AND (p_locked_by = p_reserved_by) AND (p_job_attempts = p_attempt)) THEN CASE WHEN (p_locked_at < (now() - '00:01:00'::interval)) THEN GREATEST(p_locked_at, p_created_at) ELSE NULL::timestamp with time zone END ELSE p_created_at END;

COMMENT ON FUNCTION execution.doubted_since(p_status text, p_in_doubt_since timestamp with time zone, p_reserved_by text, p_attempt integer, p_created_at timestamp with time zone, p_job_status text, p_locked_by text, p_locked_at timestamp with time zone, p_job_attempts integer) IS 'Returns since when an item is in doubt: since it was marked; or since the last heartbeat of its worker, if that is more than a minute ago; or since its reservation, if its send job has continued without it. Null while its worker works on it, while it waits for its account without a worker, and after its end.';

CREATE FUNCTION execution.end_attempt(p_tenant_id uuid, p_job_id uuid, p_actor text, p_retry_after interval, p_error text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_job record;
    v_items record;
    v_outcome text;
    v_status text;
begin
    select job.run_id, job.attempts, job.max_attempts
      into strict v_job
      from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id;
    select * into strict v_items from execution.count_items(p_tenant_id, p_job_id);
    if v_items.in_doubt > 0 then
        -- Count again, because a settlement may have committed in between.
        perform execution.doubt_leftovers(p_tenant_id, p_job_id, p_actor);
        select * into strict v_items from execution.count_items(p_tenant_id, p_job_id);
    end if;

    if v_items.in_doubt + v_items.missing = 0 then
        v_outcome := case
                         when v_items.failed = 0 then 'completed'
                         when v_items.failed = v_items.intended then 'failed'
                         else 'partial'
                     end;
        v_status := case v_outcome when 'failed' then 'dead' else 'completed' end;
    elsif v_job.attempts < v_job.max_attempts then
        v_status := 'failed';
    else
        perform execution.fail_missing(p_tenant_id, p_job_id, coalesce(p_error, 'no attempts are left'));
        select * into strict v_items from execution.count_items(p_tenant_id, p_job_id);
        v_outcome := case when v_items.succeeded > 0 then 'partial' else 'failed' end;
        v_status := 'dead';
    end if;

    if v_status = 'completed' then
        update execution.job_queue
           set status = 'completed',
               outcome = v_outcome,
               locked_by = null,
               locked_at = null,
               succeeded = v_items.succeeded,
               failed = v_items.failed,
               skipped = v_items.skipped,
               finished_at = v_now
         where tenant_id = p_tenant_id
           and id = p_job_id;
    else
        update execution.job_queue
           set status = 'failed',
               locked_by = null,
               locked_at = null,
               run_after = v_now + p_retry_after,
               last_error = left(coalesce(p_error, case when v_items.in_doubt > 0 then v_items.in_doubt || ' items in doubt' end,
                                          last_error), 2000)
         where tenant_id = p_tenant_id
           and id = p_job_id;
        if v_status = 'dead' then
            update execution.job_queue
               set status = 'dead',
                   outcome = v_outcome,
                   succeeded = v_items.succeeded,
                   failed = v_items.failed,
                   skipped = v_items.skipped,
                   finished_at = v_now
             where tenant_id = p_tenant_id
               and id = p_job_id;
        end if;
    end if;
    perform execution.audit(p_tenant_id, null, null, v_job.run_id, p_job_id, null, p_actor, 'job.' || v_status,
                            coalesce(p_error, v_outcome));
    if v_status in ('completed', 'dead') then
        perform execution.finish_run(p_tenant_id, v_job.run_id, p_actor);
    end if;
    return v_status;
end
$$;

COMMENT ON FUNCTION execution.end_attempt(p_tenant_id uuid, p_job_id uuid, p_actor text, p_retry_after interval, p_error text) IS 'Ends the attempt of a locked send job and returns its status, computed from its items: completed, dead, or failed with another attempt to come. The end of the last send job ends the run.';

CREATE FUNCTION execution.end_phase(p_tenant_id uuid, p_phase_id uuid, p_actor text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_runs constant uuid[] := execution.runs_since_all(p_tenant_id, p_phase_id);
    v_phase record;
    v_run record;
    v_items record;
    v_all integer;
begin
    select phase.campaign_id, phase.failure_tolerance
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;
    select run.id, run.status
      into strict v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = v_runs[1];
    select run.intended
      into strict v_all
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = v_runs[cardinality(v_runs)];
    -- The counters of the send jobs are enough for a single run without items in doubt. After a retry, or if a send job left
    -- items in doubt that may be settled by now, count the items.
    select coalesce(sum(job.succeeded + job.skipped), 0) as went_well,
           coalesce(sum(job.failed), 0) as failed
      into v_items
      from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.run_id = v_run.id;
    if cardinality(v_runs) > 1 or v_items.went_well + v_items.failed < v_all then
        select count(*) filter (where lead.went_well) as went_well,
               count(*) filter (where not lead.went_well and not lead.is_open) as failed
          into v_items
          from (select bool_or(item.status in ('sent', 'called', 'posted', 'skipped')) as went_well,
                       bool_or(item.status = 'queued') as is_open
                  from execution.channel_outbox as item
                 where item.tenant_id = p_tenant_id
                   and item.run_id = any (v_runs)
                 group by item.recipient_id) as lead;
    end if;
    perform execution.note_counted_progress(p_tenant_id, v_phase.campaign_id, p_phase_id,
                                            100.0 * (v_items.went_well + v_items.failed) / v_all,
                                            execution.run_counts(p_tenant_id, v_run.id));
    perform execution.enter_phase_state(
        p_tenant_id, v_phase.campaign_id, p_phase_id,
        case
            when v_items.went_well > 0 and v_all - v_items.went_well <= v_phase.failure_tolerance * v_all then 'complete'
            else 'fail'
        end,
        v_run.id, p_actor,
        jsonb_build_object('runStatus', v_run.status, 'items', v_all, 'succeededOrSkipped', v_items.went_well,
                           'failed', v_items.failed, 'open', v_all - v_items.went_well - v_items.failed));
end
$$;

COMMENT ON FUNCTION execution.end_phase(p_tenant_id uuid, p_phase_id uuid, p_actor text) IS 'Ends a phase whose newest run has ended: completed if at most the tolerated share of the audience did not get the message in the runs since the whole audience was addressed, else failed. An item that was not tried or is in doubt counts as failed. The caller has locked the campaign and the phase.';

CREATE FUNCTION execution.enter_phase_state(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_trigger text, p_run_id uuid, p_actor text, p_details jsonb) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_status constant text := execution.phase_goal(p_trigger);
    v_before text;
    v_due text;
    v_phase record;
    v_sequence bigint;
begin
    if v_status = 'completed' then
        select case when campaign.auto_advance then 'advance' end
          into v_due
          from execution.campaigns as campaign
         where campaign.tenant_id = p_tenant_id
           and campaign.id = p_campaign_id;
    end if;
    select phase.status
      into strict v_before
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;
    update execution.campaign_phases as phase
       set status = v_status,
           updated_at = now(),
           due = v_due
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id
 returning phase.phase, phase.progress_reported
      into strict v_phase;
    perform execution.audit(p_tenant_id, p_campaign_id, p_phase_id, p_run_id, null, null, p_actor, 'phase.' || v_status,
                            v_phase.phase || ' (' || p_trigger || ')');
    -- A progress report belongs to the state in which it was made; write it first if the rate limit of events
    -- allows.
    if v_phase.progress_reported is not null then
        perform execution.note_progress_of(p_tenant_id, p_campaign_id, p_phase_id, v_phase.progress_reported);
    end if;
    v_sequence := execution.note_event(
        p_tenant_id, p_campaign_id, v_phase.phase,
        case p_trigger
            when 'pause' then 'phase_paused'
            when 'resume' then 'phase_resumed'
            when 'complete' then 'phase_completed'
            when 'fail' then 'phase_failed'
            else 'phase_started'
        end,
        jsonb_strip_nulls(jsonb_build_object('status', v_status, 'previousStatus', v_before, 'trigger', p_trigger,
                                             'runId', p_run_id, 'actor', p_actor)) || coalesce(p_details, '{}'));
    if p_trigger in ('start', 'retry', 'rerun') then
        perform execution.note_progress_of(p_tenant_id, p_campaign_id, p_phase_id, 0);
    end if;
    return v_sequence;
end
$$;

COMMENT ON FUNCTION execution.enter_phase_state(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_trigger text, p_run_id uuid, p_actor text, p_details jsonb) IS 'Changes the state of a phase and writes the audit line, the event and the domain event. Returns the number of the event. The caller has locked the campaign and then the phase.';

CREATE FUNCTION execution.erase_lead(p_tenant_id uuid, p_lead_id uuid, p_actor text, OUT is_known boolean, OUT erased_at timestamp with time zone, OUT items bigint, OUT messages bigint, OUT open_items bigint, OUT open_messages bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
#variable_conflict use_column
declare
    c_erased constant text := 'erased';
    v_now constant timestamptz := now();
    v_lead record;
    v_job_id uuid;
    v_items uuid[];
    v_keys text[];
    v_messages uuid[];
    -- The names under which chat providers know the person.
    v_senders text[];
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    select lead.*
      into v_lead
      from execution.leads as lead
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       for update;
    is_known := found;
    items := 0;
    messages := 0;
    open_items := 0;
    open_messages := 0;
    if not is_known then
        return;
    end if;
    if v_lead.erased_at is not null then
        select erasure.at, erasure.items, erasure.messages
          into erased_at, items, messages
          from execution.erasures as erasure
         where erasure.tenant_id = p_tenant_id
           and erasure.lead_id = p_lead_id;
        return;
    end if;
    if v_lead.erasing_since is null or v_lead.erasing_since >= v_now then
        raise exception 'begin_erasure must be committed before erase_lead' using errcode = 'invalid_parameter_value';
    end if;

    -- Lock one job at a time and release it at once, as await_reservations does.
    perform set_config('lock_timeout', '10s', true);
    for v_job_id in
        select job.id
          from execution.job_queue as job
         where job.tenant_id = p_tenant_id
           and job.status = 'locked'
           and p_lead_id = any (job.item_ids)
    loop
        begin
            perform
               from execution.job_queue as job
              where job.tenant_id = p_tenant_id
                and job.id = v_job_id
                for no key update;
            raise sqlstate 'PR000';
        exception when sqlstate 'PR000' then
            null; -- the rollback to the savepoint released the lock
        end;
    end loop;

    -- The key of an item is a function of its run and lead, so the unique index finds the items of a person.
    select coalesce(array_agg(item.id), '{}'), coalesce(array_agg(item.idempotency_key), '{}'),
           count(*) filter (where item.status = 'queued' and item.is_begun)
      into v_items, v_keys, open_items
      from execution.campaign_runs as run
           cross join lateral (
               select item.id, item.idempotency_key, item.status,
                      item.reserved_by is not null or item.in_doubt_since is not null as is_begun
                 from execution.channel_outbox as item
                where item.idempotency_key = execution.outbox_key(run.id, p_lead_id, run.key_part, run.scheduled_for)
                  and item.tenant_id = p_tenant_id
                  and item.workspace_id = run.workspace_id
               offset 0) as item
     where run.tenant_id = p_tenant_id
       and run.workspace_id = v_lead.workspace_id;
    v_senders := array_remove(array[v_lead.email, lower(v_lead.email), v_lead.phone, ltrim(v_lead.phone, '+')], null);
    select coalesce(array_agg(message.id), '{}'),
           count(*) filter (where message.status = 'accepted' or message.leased_until is not null
                                  or reply.status in ('pending', 'sending'))
      into v_messages, open_messages
      from channels.channel_messages as message
           left join channels.channel_outbox as reply
                  on reply.tenant_id = message.tenant_id
                 and reply.channel_message_id = message.id
     where message.tenant_id = p_tenant_id
       and message.sender_id = any (v_senders);
    if open_items > 0 or open_messages > 0 then
        return;
    end if;
    items := cardinality(v_items)::bigint;
    messages := cardinality(v_messages)::bigint;
    erased_at := v_now;

    -- The record comes first: the guards below ask for it.
    insert into execution.erasures (tenant_id, lead_id, at, actor, items, messages)
    values (p_tenant_id, p_lead_id, v_now, p_actor, items, messages);
    update execution.channel_outbox as item
       set recipient = null,
           error = case when item.error is not null then c_erased end,
           message_hash = null
     where item.tenant_id = p_tenant_id
       and item.id = any (v_items);
    delete from execution.provider_callbacks as callback
     where callback.tenant_id = p_tenant_id
       and callback.idempotency_key = any (v_keys);
    update execution.job_queue as job
       set last_error = c_erased
     where job.tenant_id = p_tenant_id
       and (strpos(lower(job.last_error), lower(v_lead.email)) > 0 or strpos(job.last_error, v_lead.phone) > 0);
    update execution.campaign_audit_log as line
       set note = c_erased
     where line.tenant_id = p_tenant_id
       and line.note <> c_erased
       and (line.outbox_id = any (v_items)
            or strpos(lower(line.note), lower(v_lead.email)) > 0 or strpos(line.note, v_lead.phone) > 0);
    update tenancy.audit_log as line
       set note = c_erased
     where line.tenant_id = p_tenant_id
       and line.note <> c_erased
       and (line.subject = 'lead:' || p_lead_id
            or strpos(lower(line.note), lower(v_lead.email)) > 0 or strpos(line.note, v_lead.phone) > 0);
    update tenancy.requests as request
       set body = null
     where request.tenant_id = p_tenant_id
       and (strpos(lower(request.body), lower(v_lead.email)) > 0 or strpos(request.body, v_lead.phone) > 0
            or strpos(request.body, p_lead_id::text) > 0);
    -- The rows of messages stay: a provider delivers a message again for days, and its id must then be known.
    update channels.channel_outbox as reply
       set recipient_id = c_erased,
           payload = '{}',
           last_error = case when reply.last_error is not null then c_erased end,
           delivery_error = case when reply.delivery_error is not null then c_erased end
     where reply.tenant_id = p_tenant_id
       and reply.channel_message_id = any (v_messages);
    update channels.channel_messages as message
       set sender_id = c_erased,
           thread = null,
           text = c_erased,
           user_id = null,
           last_error = case when message.last_error is not null then c_erased end,
           reply = null
     where message.tenant_id = p_tenant_id
       and message.id = any (v_messages);
    delete from channels.channel_links as link
     where link.tenant_id = p_tenant_id
       and link.sender_id = any (v_senders);
    delete from execution.lead_list_members as member
     where member.tenant_id = p_tenant_id
       and member.lead_id = p_lead_id
       and member.list_id in (select list.id from execution.lead_lists as list where list.tenant_id = p_tenant_id);
    -- The first step suppressed the lead at the time at which it began, if it was not suppressed before.
    if v_lead.suppressed_at < v_lead.erasing_since then
        perform execution.keep_suppression(p_tenant_id, v_lead.workspace_id, p_lead_id, v_lead.email, v_lead.phone,
                                           v_lead.external_id, v_lead.suppressed_at);
    end if;
    update execution.leads as lead
       set identity = 'erased:' || lead.id::text,
           external_id = null,
           email = null,
           phone = null,
           timezone = null,
           attributes = '{}',
           suppression_reason = c_erased,
           erased_at = v_now,
           updated_at = v_now
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'lead.erased', 'lead:' || p_lead_id);
end
$$;

COMMENT ON FUNCTION execution.erase_lead(p_tenant_id uuid, p_lead_id uuid, p_actor text, OUT is_known boolean, OUT erased_at timestamp with time zone, OUT items bigint, OUT messages bigint, OUT open_items bigint, OUT open_messages bigint) IS 'Second step of an erasure: removes the data of a lead from every table of the tenant and records that. Keys stay, because they are hashes. Changes nothing while an item of the lead is in flight or in doubt (open_items), or a chat message of the person is being answered (open_messages). Repeating the call changes nothing.';

CREATE FUNCTION execution.fail_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_error text, p_retry_after interval DEFAULT '00:01:00'::interval) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    return execution.end_attempt(p_tenant_id, p_job_id, p_worker_id, p_retry_after, coalesce(nullif(btrim(p_error), ''), 'failed'));
end
$$;

COMMENT ON FUNCTION execution.fail_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_error text, p_retry_after interval) IS 'Ends an attempt that could not continue, and returns the status of the send job: failed with a retry, or dead if no attempts are left.';

CREATE FUNCTION execution.fail_missing(p_tenant_id uuid, p_job_id uuid, p_error text) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update execution.channel_outbox
       set status = 'failed',
           error = left('its send job ended before the item was sent: ' || coalesce(error || '; ', '') || p_error, 2000),
           finalized_at = now()
     where tenant_id = p_tenant_id
       and job_id = p_job_id
       and status = 'queued'
       and in_doubt_since is null
       and reserved_by is null;
    insert into execution.channel_outbox
           (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, idempotency_key, status, error, attempt,
            finalized_at)
    select job.tenant_id, job.workspace_id, job.run_id, job.id, run.channel, run.provider, item.id,
           execution.outbox_key(run.id, item.id, run.key_part, run.scheduled_for), 'failed',
           left('its send job ended before the item was tried: ' || p_error, 2000), job.attempts, now()
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           cross join unnest(job.item_ids) as item (id)
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
        on conflict (tenant_id, workspace_id, idempotency_key) do nothing
$$;

COMMENT ON FUNCTION execution.fail_missing(p_tenant_id uuid, p_job_id uuid, p_error text) IS 'Fails the items of a send job that were put back, and adds a failed row for every item that was never reserved. This uses the keys, so that a late worker cannot send the items either.';

CREATE FUNCTION execution.finalize_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[]) RETURNS TABLE(tenant_id uuid, id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_nestloop TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
    v_is_one_tenant constant boolean := p_tenant_ids[1] = all (p_tenant_ids);
    v_batch record;
    v_changed integer;
    v_doubted integer;
    v_put_back integer;
begin
    perform tenancy.limit_idle_time();
    if not coalesce(p_statuses <@ array['sent', 'called', 'posted', 'failed', 'in_doubt', 'put_back'], false)
       or cardinality(p_statuses) <> cardinality(p_outbox_ids)
       or cardinality(p_tenant_ids) is distinct from cardinality(p_outbox_ids)
    then
        raise exception 'an item is settled as sent, called, posted, failed, in_doubt or put_back, each with its tenant and its own word'
            using errcode = 'invalid_parameter_value';
    end if;
    for v_batch in
        -- The arrays of a single tenant need no grouping.
        select p_tenant_ids[1] as tenant_id, p_outbox_ids as ids, p_statuses as statuses, p_message_ids as message_ids,
               p_errors as errors
         where v_is_one_tenant
        union all
        (select settled.tenant_id, array_agg(settled.id), array_agg(settled.status), array_agg(settled.provider_message_id),
                array_agg(settled.error)
           from unnest(p_tenant_ids, p_outbox_ids, p_statuses, p_message_ids, p_errors)
                as settled (tenant_id, id, status, provider_message_id, error)
          where not v_is_one_tenant
          group by settled.tenant_id
          order by settled.tenant_id)
    loop
        v_doubted := 0;
        v_put_back := 0;
        if array_position(v_batch.statuses, 'in_doubt') is not null then
            return query
                with doubted as (
                    update execution.channel_outbox as item
                       set in_doubt_since = v_now,
                           error = left(settled.error, 2000)
                      from unnest(v_batch.ids, v_batch.statuses, v_batch.errors) as settled (id, status, error)
                     where item.tenant_id = v_batch.tenant_id
                       and item.id = any (v_batch.ids)
                       and item.id = settled.id
                       and settled.status = 'in_doubt'
                       and item.status = 'queued'
                       and item.in_doubt_since is null
                       and item.reserved_by = p_worker_id
                 returning item.id, item.tenant_id, item.run_id, item.job_id, item.error
                ), logged as (
                    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
                    select v_batch.tenant_id, doubted.run_id, doubted.job_id, doubted.id, p_worker_id, 'item.in_doubt',
                           doubted.error
                      from doubted
                )
                select doubted.tenant_id, doubted.id from doubted;
            get diagnostics v_doubted = row_count;
        end if;

        -- Provably no call was made, because the account must wait. The row keeps its key and loses its worker, until a window reserves
        -- it again. If another session has put the item in doubt in the meantime, the statement below settles it as failed.
        if array_position(v_batch.statuses, 'put_back') is not null then
            return query
                update execution.channel_outbox as item
                   set reserved_by = null,
                       attempt = null,
                       error = left(settled.error, 2000)
                  from unnest(v_batch.ids, v_batch.statuses, v_batch.errors) as settled (id, status, error)
                 where item.tenant_id = v_batch.tenant_id
                   and item.id = any (v_batch.ids)
                   and item.id = settled.id
                   and settled.status = 'put_back'
                   and item.status = 'queued'
                   and item.in_doubt_since is null
                   and item.reserved_by = p_worker_id
             returning item.tenant_id, item.id;
            get diagnostics v_put_back = row_count;
        end if;

        return query
            update execution.channel_outbox as item
               set status = case settled.status when 'put_back' then 'failed' else settled.status end,
                   provider_message_id = left(settled.provider_message_id, 500),
                   error = left(settled.error, 2000),
                   finalized_at = v_now,
                   in_doubt_since = null
              from (select unnest(v_batch.ids) as id, unnest(v_batch.statuses) as status,
                           unnest(v_batch.message_ids) as provider_message_id, unnest(v_batch.errors) as error) as settled
             where item.tenant_id = v_batch.tenant_id
               and item.id = any (v_batch.ids)
               and item.id = settled.id
               and settled.status <> 'in_doubt'
               and item.status = 'queued'
               and item.reserved_by = p_worker_id
         returning item.tenant_id, item.id;
        get diagnostics v_changed = row_count;

        -- A result that contradicts an earlier settlement changes nothing; keep it in the audit log.
        if v_changed + v_doubted + v_put_back < cardinality(v_batch.ids) then
            insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
            select v_batch.tenant_id, item.run_id, item.job_id, item.id, p_worker_id, 'item.contradicted',
                   'the provider''s answer was: ' || settled.status || coalesce(' ' || settled.provider_message_id, '')
              from unnest(v_batch.ids, v_batch.statuses, v_batch.message_ids) as settled (id, status, provider_message_id)
                   join execution.channel_outbox as item on item.tenant_id = v_batch.tenant_id and item.id = settled.id
             where item.id = any (v_batch.ids)
               and settled.status not in ('in_doubt', 'put_back')
               and item.reserved_by = p_worker_id
               and item.status <> 'queued'
               and item.status <> settled.status;
        end if;
    end loop;
end
$$;

COMMENT ON FUNCTION execution.finalize_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[]) IS 'Settles items, of any number of tenants, with the results of their calls: sent, called, posted, failed; in_doubt, which leaves the row queued; or put_back, which leaves it queued without a worker, because the account must wait. Only the worker that reserved an item settles it, whether or not it still holds the send job, because the result of a call is evidence. Returns the changed rows; the others were settled before.';

CREATE FUNCTION execution.find_leads(p_tenant_id uuid, p_wanted text) RETURNS TABLE(lead_id uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select found.id
          from (select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = p_tenant_id
                   and lower(lead.email) = lower(p_wanted)
                   and lead.email is not null
                 union
                select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = p_tenant_id
                   and lead.phone = p_wanted
                   and lead.phone is not null
                 union
                select lead.id
                  from tenancy.workspaces as workspace
                       join execution.leads as lead
                         on lead.tenant_id = p_tenant_id
                        and lead.workspace_id = workspace.id
                        and lead.identity = 'id:' || p_wanted
                 where workspace.tenant_id = p_tenant_id
                 union
                select lead.id
                  from execution.leads as lead
                 where lead.tenant_id = p_tenant_id
                   and lead.external_id = p_wanted
                   and lead.external_id is not null
                   and lead.identity not like 'id:%') as found
         order by found.id;
end
$$;

COMMENT ON FUNCTION execution.find_leads(p_tenant_id uuid, p_wanted text) IS 'Returns the leads of the tenant with this e-mail address, in upper or lower case, this phone number or this external id.';

CREATE FUNCTION execution.finish_run(p_tenant_id uuid, p_run_id uuid, p_actor text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_run record;
    v_status text;
    v_phase_status text;
begin
    -- Lock the run first: of two send jobs that end at once, the later one sees both.
    select run.*
      into strict v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id
       for no key update;
    -- Read the index from its end, where the send job is that is claimed last: while a transaction holds an old
    -- snapshot, the entries of all ended send jobs still lie before it.
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.run_id = p_run_id
        and job.status in ('queued', 'locked', 'failed')
      order by job.run_after desc, job.id desc
      limit 1;
    if found then
        return;
    end if;
    select case
               when bool_and(job.outcome = 'completed') then 'completed'
               when bool_and(job.outcome = 'failed') then 'failed'
               else 'partial'
           end
      into v_status
      from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.run_id = p_run_id;
    update execution.campaign_runs
       set status = v_status,
           finished_at = now()
     where tenant_id = p_tenant_id
       and id = p_run_id;
    perform execution.audit(p_tenant_id, v_run.campaign_id, v_run.phase_id, p_run_id, null, null, p_actor,
                            'run.' || v_status, null);
    perform
       from execution.campaigns
      where tenant_id = p_tenant_id
        and id = v_run.campaign_id
        for no key update;
    select phase.status
      into strict v_phase_status
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = v_run.phase_id
       for no key update;
    -- A paused phase ends when it is resumed.
    if v_phase_status = 'in_progress' then
        perform execution.end_phase(p_tenant_id, v_run.phase_id, p_actor);
    end if;
end
$$;

COMMENT ON FUNCTION execution.finish_run(p_tenant_id uuid, p_run_id uuid, p_actor text) IS 'Ends the run if its last send job has ended, and with it the phase if the phase is in progress.';

CREATE FUNCTION execution.follow_doubt() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if new.in_doubt_since is null then
        delete from execution.doubts where tenant_id = new.tenant_id and outbox_id = new.id;
    else
        insert into execution.doubts (outbox_id, tenant_id, account_id, provider, campaign_id, in_doubt_since)
        select new.id, new.tenant_id, account.id, account.provider, run.campaign_id, new.in_doubt_since
          from execution.campaign_runs as run
               join tenancy.provider_accounts as account
                 on account.tenant_id = run.tenant_id
                and account.id = coalesce(new.moved_to_account_id, run.provider_account_id)
         where run.tenant_id = new.tenant_id
           and run.id = new.run_id
            on conflict (tenant_id, outbox_id) do update set in_doubt_since = excluded.in_doubt_since;
    end if;
    return null;
end
$$;

COMMENT ON FUNCTION execution.follow_doubt() IS 'Trigger function: adds a row to execution.doubts when an item becomes in doubt, and deletes it when the doubt ends.';

CREATE FUNCTION execution.heartbeat_jobs(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[]) RETURNS TABLE(tenant_id uuid, id uuid)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    update execution.job_queue as job
       set locked_at = now()
      from (select held.tenant_id, held.id
              from (select given.*
                      from unnest(p_tenant_ids, p_job_ids, p_attempts) as given (tenant_id, id, attempt)
                     order by given.tenant_id, given.id) as held
                   cross join lateral (
                       select
                         from execution.job_queue as mine
                        where mine.tenant_id = held.tenant_id
                          and mine.id = held.id
                          and mine.status = 'locked'
                          and mine.locked_by = p_worker_id
                          and mine.attempts = held.attempt
                          for no key update) as mine
            offset 0) as mine
     where job.tenant_id = mine.tenant_id
       and job.id = mine.id
 returning job.tenant_id, job.id
$$;

COMMENT ON FUNCTION execution.heartbeat_jobs(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[]) IS 'Renews the locks of a worker''s send jobs, of any number of tenants, and returns the send jobs that the worker still holds. It locks send jobs in the order of tenants and ids, as reservations do, so that the two cannot deadlock.';

CREATE FUNCTION execution.held_account(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_account_id uuid;
begin
    perform tenancy.limit_idle_time();
    select case when p_failover then run.failover_account_id else run.provider_account_id end
      into v_account_id
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = p_attempt;
    if v_account_id is null then
        raise exception 'send job % is not held by % under attempt %', p_job_id, coalesce(p_worker_id, 'null'),
                        coalesce(p_attempt::text, 'null')
            using errcode = 'PR001',
                  hint = 'A lock lasts five minutes without a heartbeat; it may have gone stale and been taken over.';
    end if;
    -- Check first: an insert alone would wait for a concurrent insert of the same row.
    if not exists (select
                     from execution.account_states as state
                    where state.tenant_id = p_tenant_id
                      and state.account_id = v_account_id)
    then
        insert into execution.account_states (tenant_id, account_id)
        values (p_tenant_id, v_account_id)
            on conflict do nothing;
    end if;
    return v_account_id;
end
$$;

COMMENT ON FUNCTION execution.held_account(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean) IS 'Returns the account, or the failover account, of a tenant''s send job that the worker holds, and creates the state row of the account. Raises PR001 if the worker does not hold the send job.';

CREATE FUNCTION execution.hold_account(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_seconds double precision, p_reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_until constant timestamptz := now() + least(p_seconds, 86400) * interval '1 second';
    v_account_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    update execution.account_states as state
       set wait_until = v_until,
           wait_reason = left(p_reason, 500)
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       and (state.wait_until is null or state.wait_until < v_until);
end
$$;

COMMENT ON FUNCTION execution.hold_account(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_seconds double precision, p_reason text) IS 'Records that the provider asked for no calls: every process waits for so long, at most one day.';

CREATE FUNCTION execution.import_leads(p_tenant_id uuid, p_intake uuid, p_workspace_id uuid, p_list text, p_list_id uuid) RETURNS TABLE(list_id uuid, added bigint, updated bigint, repeated bigint, matched bigint, ambiguous bigint[])
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_tenant_id constant uuid := p_tenant_id;
    v_now constant timestamptz := now();
    v_list_id uuid;
    v_identities text[];
    v_external_ids text[];
    v_mails text[];
    v_phones text[];
    v_known jsonb;
    v_later jsonb;
    v_by_mail jsonb;
    v_by_phone jsonb;
    v_lines bigint;
    v_people bigint;
    v_added bigint;
    v_matched bigint;
    v_ambiguous bigint[];
    -- The imported leads, if the workspace keeps suppressions of erased people.
    v_imported uuid[];
    v_keeps_suppressions constant boolean := exists (select
                                                       from execution.suppressed_addresses as known
                                                      where known.tenant_id = p_tenant_id
                                                        and known.workspace_id = p_workspace_id);
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Import one intake at a time per workspace: two imports of the same person would not see each other's lead.
    -- The lock is on a row that only this tenant can reach.
    perform
       from tenancy.workspaces as workspace
      where workspace.tenant_id = v_tenant_id
        and workspace.id = p_workspace_id
        for no key update;
    insert into execution.lead_lists (id, tenant_id, workspace_id, name)
    values (p_list_id, v_tenant_id, p_workspace_id, p_list)
    on conflict (tenant_id, workspace_id, name) where name is not null do nothing;
    select list.id
      into strict v_list_id
      from execution.lead_lists as list
     where list.tenant_id = v_tenant_id
       and list.workspace_id = p_workspace_id
       and list.name = p_list;

    -- Look up the existing leads of all lines, one index lookup per value, and keep them as maps. A comparison with the
    -- whole array would compare every lead of the tenant with every line.
    select array_agg(intake.identity), array_agg(intake.external_id) filter (where intake.external_id is not null),
           array_agg(distinct lower(intake.email)) filter (where intake.email is not null),
           array_agg(distinct intake.phone) filter (where intake.email is null and intake.phone is not null)
      into v_identities, v_external_ids, v_mails, v_phones
      from execution.lead_intake as intake
     where intake.intake = p_intake;
    select jsonb_object_agg(known.identity, true)
      into v_known
      from unnest(v_identities) as wanted (identity)
           cross join lateral (
               select lead.identity
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lead.identity = wanted.identity
                offset 0) as known;
    select jsonb_object_agg(later.external_id, later.identity)
      into v_later
      from unnest(v_external_ids) as wanted (external_id)
           cross join lateral (
               select lead.external_id, lead.identity
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lead.external_id = wanted.external_id
                  and lead.external_id is not null
                  and lead.identity not like 'id:%'
                offset 0) as later;
    -- For each address: the lowest and the highest identity of the leads that have it, and whether one has an
    -- external id.
    select jsonb_object_agg(wanted.address, jsonb_build_array(holder.lowest, holder.highest, holder.is_named))
      into v_by_mail
      from unnest(v_mails) as wanted (address)
           cross join lateral (
               select min(lead.identity) as lowest, max(lead.identity) as highest,
                      bool_or(lead.external_id is not null) as is_named
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lower(lead.email) = wanted.address
                  and lead.email is not null) as holder
     where holder.lowest is not null;
    select jsonb_object_agg(wanted.address, jsonb_build_array(holder.lowest, holder.highest, holder.is_named))
      into v_by_phone
      from unnest(v_phones) as wanted (address)
           cross join lateral (
               select min(lead.identity) as lowest, max(lead.identity) as highest,
                      bool_or(lead.external_id is not null) as is_named
                 from execution.leads as lead
                where lead.tenant_id = v_tenant_id
                  and lead.workspace_id = p_workspace_id
                  and lead.phone = wanted.address
                  and lead.phone is not null) as holder
     where holder.lowest is not null;

    -- The checks of foreign keys are queries, too, three for each line, so keep their plans. They have one index to use, and
    -- do not read a table that is small now from end to end.
    perform set_config('plan_cache_mode', 'force_generic_plan', true);
    with lines as materialized (
        delete from execution.lead_intake as intake
         where intake.intake = p_intake
     returning intake.*
    ), own as materialized (
        select lines.*,
               lower(lines.email) as mail,
               case when lines.email is null then lines.phone end as number,
               lines.external_id is not null as is_named,
               coalesce(v_known ? lines.identity, false) as is_known,
               -- Number of lines with an external id that have the same address.
               count(*) filter (where lines.external_id is not null)
                   over (partition by lower(lines.email), case when lines.email is null then lines.phone end) as claims,
               v_later ->> lines.external_id as later,
               case when lines.email is null then v_by_phone -> lines.phone else v_by_mail -> lower(lines.email) end as holder
          from lines
    ), looked_up as (
        select own.*, own.holder ->> 0 as lowest, own.holder ->> 1 as highest, (own.holder ->> 2)::boolean as holder_is_named
          from own
    ), named as materialized (
        -- Decide lines with an external id first: the others may be about the same leads.
        select looked_up.*,
               case when not looked_up.is_named then null
                    when looked_up.is_known then looked_up.identity
                    when looked_up.later is not null then looked_up.later
                    when looked_up.lowest = looked_up.highest and not looked_up.holder_is_named and looked_up.claims = 1
                    then looked_up.lowest
                    else looked_up.identity
                end as decided
          from looked_up
    ), compared as (
        select named.*,
               least(named.lowest,
                     case when named.mail is not null then min(named.decided) over (partition by named.mail) end,
                     case when named.number is not null then min(named.decided) over (partition by named.phone) end) as first,
               greatest(named.highest,
                        case when named.mail is not null then max(named.decided) over (partition by named.mail) end,
                        case when named.number is not null then max(named.decided) over (partition by named.phone) end) as last
          from named
    ), resolved as materialized (
        select compared.line, compared.lead_id, compared.external_id, compared.email, compared.phone, compared.timezone,
               compared.attributes, compared.suppression_reason, compared.identity as own_identity,
               case when compared.is_named then compared.decided
                    when compared.is_known then compared.identity
                    else coalesce(compared.first, compared.identity)
                end as identity,
               not compared.is_named and not compared.is_known and compared.first <> compared.last as is_ambiguous
          from compared
    ), counted as materialized (
        select resolved.*, count(*) over (partition by resolved.identity) as times
          from resolved
         where resolved.is_ambiguous is not true
    ), people as (
        select counted.lead_id, counted.identity, counted.external_id, counted.email, counted.phone, counted.timezone,
               counted.attributes, counted.suppression_reason
          from counted
         where counted.times = 1
     union all
        -- The last line about a person counts, but no line revokes a suppression of another line.
        select (array_agg(counted.lead_id order by counted.line))[1],
               counted.identity,
               (array_agg(counted.external_id order by counted.line desc) filter (where counted.external_id is not null))[1],
               (array_agg(counted.email order by counted.line desc) filter (where counted.email is not null))[1],
               (array_agg(counted.phone order by counted.line desc) filter (where counted.phone is not null))[1],
               (array_agg(counted.timezone order by counted.line desc) filter (where counted.timezone is not null))[1],
               coalesce(jsonb_object_agg(entry.key, entry.value order by counted.line) filter (where entry.key is not null), '{}'),
               max(counted.suppression_reason)
          from counted
          left join lateral jsonb_each(counted.attributes) as entry on true
         where counted.times > 1
         group by counted.identity
    ), merged as (
        insert into execution.leads as lead
               (id, tenant_id, workspace_id, identity, external_id, email, phone, timezone, attributes,
                suppressed_at, suppression_reason)
        -- Ordered by identity, so that two imports cannot deadlock.
        select people.lead_id, v_tenant_id, p_workspace_id, people.identity, people.external_id, people.email,
               people.phone, people.timezone, people.attributes,
               case when people.suppression_reason is not null then v_now end, people.suppression_reason
          from people
         order by people.identity
            on conflict (tenant_id, workspace_id, identity) where identity is not null do update
           set external_id = coalesce(excluded.external_id, lead.external_id),
               email = coalesce(excluded.email, lead.email),
               phone = coalesce(excluded.phone, lead.phone),
               timezone = coalesce(excluded.timezone, lead.timezone),
               attributes = lead.attributes || excluded.attributes,
               suppressed_at = coalesce(lead.suppressed_at, excluded.suppressed_at),
               suppression_reason = coalesce(lead.suppression_reason, excluded.suppression_reason),
               updated_at = v_now
     returning lead.id, lead.xmax = 0 as is_new
    ), members as (
        insert into execution.lead_list_members (tenant_id, list_id, lead_id)
        select v_tenant_id, v_list_id, merged.id
          from merged
            on conflict do nothing
    )
    select (select count(*) from lines),
           count(*),
           count(*) filter (where merged.is_new),
           (select count(*) from counted where counted.identity <> counted.own_identity),
           (select coalesce(array_agg(resolved.line order by resolved.line), '{}') from resolved where resolved.is_ambiguous),
           array_agg(merged.id) filter (where v_keeps_suppressions)
      into v_lines, v_people, v_added, v_matched, v_ambiguous, v_imported
      from merged;
    if v_imported is not null then
        perform execution.suppress_erased_leads(v_tenant_id, p_workspace_id, v_imported);
    end if;

    -- Do not keep a new list without members.
    if v_people = 0 then
        delete from execution.lead_lists as list
         where list.tenant_id = v_tenant_id
           and list.id = p_list_id;
        if found then
            v_list_id := null;
        end if;
    end if;
    return query select v_list_id, v_added, v_people - v_added, v_lines - v_people - cardinality(v_ambiguous), v_matched, v_ambiguous;
end
$$;

COMMENT ON FUNCTION execution.import_leads(p_tenant_id uuid, p_intake uuid, p_workspace_id uuid, p_list text, p_list_id uuid) IS 'Imports the lines of one intake into the tenant and adds the leads to a list, which it creates if missing. A known lead keeps the values that the file does not mention, and stays suppressed. ambiguous has the numbers of the lines that were left out because several leads have their address; matched counts the lines whose lead was recognised by another identity.';

CREATE FUNCTION execution.keep_suppression(p_tenant_id uuid, p_workspace_id uuid, p_lead_id uuid, p_email text, p_phone text, p_external_id text, p_at timestamp with time zone) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    insert into execution.suppression_keys (tenant_id, inner_pad, outer_pad)
    select p_tenant_id, fresh.inner_pad, fresh.outer_pad
      from tenancy.new_hmac_key() as fresh
        on conflict do nothing;
    insert into execution.suppressed_addresses (tenant_id, workspace_id, hash, suppressed_at)
    select p_tenant_id, p_workspace_id, address.hash, p_at
      from unnest(execution.address_hashes(p_tenant_id, p_email, p_phone, p_external_id)) as address (hash)
        on conflict do nothing;
    -- The erased lead kept messages from the other leads with its address. From now on they are suppressed themselves.
    update execution.leads as other
       set suppressed_at = p_at,
           suppression_reason = 'suppressed before erasure',
           updated_at = v_now
     where other.tenant_id = p_tenant_id
       and other.workspace_id = p_workspace_id
       and lower(other.email) = lower(p_email)
       and other.email is not null
       and other.suppressed_at is null
       and other.id <> p_lead_id;
    update execution.leads as other
       set suppressed_at = p_at,
           suppression_reason = 'suppressed before erasure',
           updated_at = v_now
     where other.tenant_id = p_tenant_id
       and other.workspace_id = p_workspace_id
       and other.phone = p_phone
       and other.suppressed_at is null
       and other.id <> p_lead_id;
end
$$;

COMMENT ON FUNCTION execution.keep_suppression(p_tenant_id uuid, p_workspace_id uuid, p_lead_id uuid, p_email text, p_phone text, p_external_id text, p_at timestamp with time zone) IS 'Keeps the suppression of a lead that is being erased: as HMACs of its addresses, and on the other leads that have them.';

CREATE FUNCTION execution.key_time(p_at timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN COALESCE(to_char((p_at AT TIME ZONE 'UTC'::text), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'::text), '-'::text);

COMMENT ON FUNCTION execution.key_time(p_at timestamp with time zone) IS 'Formats a time as it stands in an idempotency key: RFC 3339 in UTC with microseconds, or a dash for null.';

CREATE FUNCTION execution.launch_evidence(p_tenant_id uuid, p_run_id uuid) RETURNS TABLE(installation_id uuid, epoch integer, cause text, epoch_began_at timestamp with time zone, system_identifier text, database_name text, refusal text, last_mark_at timestamp with time zone, items_adopted bigint)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from execution.campaign_runs as run where run.tenant_id = p_tenant_id and run.id = p_run_id) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        select epoch.installation_id, epoch.number, epoch.cause, epoch.began_at, here.system_identifier, here.database_name,
               tenancy.sending_refusal(),
               (select max(known.marked_at) from tenancy.process_marks as known where known.epoch_id = epoch.id),
               (select count(*)
                  from execution.campaign_audit_log as line
                 where line.tenant_id = p_tenant_id
                   and line.run_id = p_run_id
                   and line.action = 'item.adopted')
          from tenancy.database_identity() as here
               left join (select newest.* from tenancy.epochs as newest order by newest.number desc limit 1) as epoch on true;
end
$$;

COMMENT ON FUNCTION execution.launch_evidence(p_tenant_id uuid, p_run_id uuid) IS 'Returns the basis of a run''s launch certificate: the installation and its epoch, the reason why a restored copy certifies nothing, the time at which a process last compared the database with its witness, and the number of items that an adoption put in doubt.';

CREATE FUNCTION execution.measure_circuits() RETURNS TABLE(provider text, open bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select account.provider, count(*)
      from execution.account_states as state
           join tenancy.provider_accounts as account
             on account.tenant_id = state.tenant_id and account.id = state.account_id
     where state.circuit_open_until is not null
     group by account.provider
$$;

COMMENT ON FUNCTION execution.measure_circuits() IS 'Counts the circuits that are not closed, by provider, over all tenants, for the metrics.';

CREATE FUNCTION execution.measure_jobs() RETURNS TABLE(jobs_waiting bigint, jobs_locked bigint, oldest_lock_seconds double precision, items_in_doubt bigint, oldest_doubt_seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select (select count(*) from execution.job_queue where status = 'queued'),
           (select count(*) from execution.job_queue where status = 'locked'),
           (select coalesce(extract(epoch from now() - min(locked_at)), 0) from execution.job_queue where status = 'locked'),
           (select count(*) from execution.channel_outbox where in_doubt_since is not null),
           (select coalesce(extract(epoch from now() - min(in_doubt_since)), 0)
              from execution.channel_outbox
             where in_doubt_since is not null)
$$;

COMMENT ON FUNCTION execution.measure_jobs() IS 'Counts queued send jobs, locked send jobs and items in doubt, with the age of the oldest, over all tenants, for the metrics.';

CREATE FUNCTION execution.move_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[]) RETURNS TABLE(tenant_id uuid, id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
#variable_conflict use_column
begin
    perform tenancy.limit_idle_time();
    -- A move must survive a crash, whatever the settings of the login are.
    perform tenancy.require_durable_commit();
    return query
        with moving as (
            select item.tenant_id, item.id, item.failover_account_id
              from (select given.*
                      from unnest(p_tenant_ids, p_outbox_ids) as given (tenant_id, id)
                     order by given.tenant_id, given.id) as wanted
                   cross join lateral (
                       select item.tenant_id, item.id, run.failover_account_id
                         from execution.channel_outbox as item
                              join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
                        where item.tenant_id = wanted.tenant_id
                          and item.id = wanted.id
                          and item.status = 'queued'
                          and item.in_doubt_since is null
                          and item.reserved_by = p_worker_id
                          and item.moved_to_account_id is null
                          and run.failover_account_id is not null
                          for no key update of item) as item
        ), moved as (
            update execution.channel_outbox as item
               set moved_to_account_id = moving.failover_account_id
              from moving
             where item.tenant_id = moving.tenant_id
               and item.id = moving.id
               and item.status = 'queued'
               and item.in_doubt_since is null
               and item.moved_to_account_id is null
         returning item.id, item.tenant_id, item.run_id, item.job_id, item.moved_to_account_id
        ), logged as (
            insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
            select moved.tenant_id, moved.run_id, moved.job_id, moved.id, p_worker_id, 'item.moved',
                   'to account ' || moved.moved_to_account_id
              from moved
        )
        select moved.tenant_id, moved.id from moved;
end
$$;

COMMENT ON FUNCTION execution.move_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[]) IS 'Moves items to the failover account of their run before they are called there, and returns the moved items. An item moves only if this worker reserved it, it is not in doubt and it has not moved before.';

CREATE FUNCTION execution.note_counted_progress(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric, p_run jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := clock_timestamp();
    v_progress constant numeric := trunc(least(p_progress, 100), 1);
    v_phase record;
begin
    select phase.phase, phase.progress,
           campaign.progress_at is null or campaign.progress_at <= v_now - interval '500 milliseconds' as is_due
      into strict v_phase
      from execution.campaign_phases as phase
           join execution.campaigns as campaign
             on campaign.tenant_id = phase.tenant_id and campaign.id = phase.campaign_id
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id
       for no key update of phase;
    if v_phase.progress = v_progress or v_phase.is_due then
        update execution.campaign_phases as phase
           set progress = v_progress,
               progress_reported = null
         where phase.tenant_id = p_tenant_id
           and phase.id = p_phase_id
           and (phase.progress <> v_progress or phase.progress_reported is not null);
    else
        update execution.campaign_phases as phase
           set progress_reported = v_progress
         where phase.tenant_id = p_tenant_id
           and phase.id = p_phase_id
           and phase.progress_reported is distinct from v_progress;
        return;
    end if;
    if v_phase.progress <> v_progress then
        update execution.campaigns
           set progress_at = v_now
         where tenant_id = p_tenant_id
           and id = p_campaign_id;
        perform execution.note_event(p_tenant_id, p_campaign_id, v_phase.phase, 'campaign_progress',
                                     jsonb_strip_nulls(jsonb_build_object('progressPercentage', v_progress, 'run', p_run)));
    end if;
end
$$;

COMMENT ON FUNCTION execution.note_counted_progress(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric, p_run jsonb) IS 'Records the progress of a phase and writes an event if it changed: at most two events per second and campaign. The event carries the counts of the phase''s run, if p_run has them. A value that comes too early waits in progress_reported for the next event. The caller has locked the campaign.';

CREATE FUNCTION execution.note_event(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_type text, p_payload jsonb) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_sequence bigint;
    v_at timestamptz := clock_timestamp();
begin
    update execution.campaigns
       set sequence = sequence + 1
     where tenant_id = p_tenant_id
       and id = p_campaign_id
 returning sequence
      into strict v_sequence;
    -- The clock may step back; the times of the history never do.
    v_at := greatest(v_at, (select event.at
                              from execution.campaign_events as event
                             where event.tenant_id = p_tenant_id
                               and event.campaign_id = p_campaign_id
                               and event.sequence = v_sequence - 1));
    insert into execution.campaign_events (tenant_id, campaign_id, sequence, type, phase, at, payload)
    values (p_tenant_id, p_campaign_id, v_sequence, p_type, p_phase, v_at, p_payload);
    if p_type <> 'campaign_progress' then
        -- Not by publish_outbox, which publishes for the tenant that the session names; a worker names none.
        insert into m10_recovery.outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload, process_after)
        values (p_tenant_id, 'campaign', p_campaign_id::text, 'campaign.' || p_type,
                jsonb_build_object(
                    'type', p_type, 'campaignId', p_campaign_id, 'phase', p_phase, 'sequence', v_sequence,
                    'timestamp', to_char(v_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'payload', p_payload),
                v_now);
    end if;
    perform tenancy.send_hint('postrider_campaign_events');
    return v_sequence;
end
$$;

COMMENT ON FUNCTION execution.note_event(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_type text, p_payload jsonb) IS 'Writes the next event of a campaign and returns its number. The caller has locked the campaign. A change of a phase''s state is also published as a domain event; progress is not.';

CREATE FUNCTION execution.note_progress(p_tenant_id uuid, p_worker_id text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    -- A campaign whose newest progress event is younger gets no further one yet.
    v_before constant timestamptz := clock_timestamp() - interval '500 milliseconds';
    v_due record;
    v_campaign_ids uuid[] := '{}'::uuid[];
    v_phase_ids uuid[] := '{}'::uuid[];
    v_run_ids uuid[] := '{}'::uuid[];
    v_progress numeric[] := '{}'::numeric[];
    v_counts jsonb[] := '{}'::jsonb[];
    v_done numeric;
    v_run jsonb;
begin
    perform tenancy.require_tenant(p_tenant_id);
    for v_due in
        select distinct on (due.campaign_id) due.*
          from (select run.campaign_id, run.phase_id, run.id as run_id, null::numeric as reported
                  from execution.campaign_runs as run
                 where run.tenant_id = p_tenant_id
                   and run.id in (select job.run_id
                                    from execution.job_queue as job
                                   where job.tenant_id = p_tenant_id
                                     and job.status = 'locked'
                                     and job.locked_by = p_worker_id)
                   and run.status = 'running'
                union all
                select phase.campaign_id, phase.id, null, phase.progress_reported
                  from execution.campaign_phases as phase
                 where phase.tenant_id = p_tenant_id
                   and phase.progress_reported is not null) as due
               join execution.campaigns as campaign
                 on campaign.tenant_id = p_tenant_id and campaign.id = due.campaign_id
         where campaign.progress_at is null or campaign.progress_at <= v_before
         order by due.campaign_id, random()
    loop
        v_done := v_due.reported;
        v_run := execution.run_counts(
            p_tenant_id,
            coalesce(v_due.run_id,
                     -- A report waits for its event: that of an external phase, which has no run, or the end of a delivery.
                     (select run.id
                        from execution.campaign_runs as run
                       where run.tenant_id = p_tenant_id
                         and run.phase_id = v_due.phase_id
                       order by run.number desc
                       limit 1)));
        if v_due.run_id is not null then
            -- The end of the phase reports the last tenth of a percent.
            v_done := least(99.9,
                            100.0 * ((v_run ->> 'succeeded')::bigint + (v_run ->> 'failed')::bigint + (v_run ->> 'skipped')::bigint)
                            / (v_run ->> 'intended')::bigint);
        end if;
        v_campaign_ids := v_campaign_ids || v_due.campaign_id;
        v_phase_ids := v_phase_ids || v_due.phase_id;
        v_run_ids := v_run_ids || v_due.run_id;
        v_progress := v_progress || v_done;
        v_counts := array_append(v_counts, v_run);
    end loop;
    for n in 1..cardinality(v_campaign_ids) loop
        perform
           from execution.campaigns as campaign
          where campaign.tenant_id = p_tenant_id
            and campaign.id = v_campaign_ids[n]
            and (campaign.progress_at is null or campaign.progress_at <= v_before)
            for no key update skip locked;
        continue when not found;
        -- Report only if it still holds: the run may have ended since, or another report may have come.
        perform execution.note_counted_progress(p_tenant_id, v_campaign_ids[n], v_phase_ids[n],
                                                coalesce(phase.progress_reported, v_progress[n]), v_counts[n])
           from execution.campaign_phases as phase
          where phase.tenant_id = p_tenant_id
            and phase.id = v_phase_ids[n]
            and case
                    when v_run_ids[n] is null then phase.progress_reported is not null
                    else exists (select
                                   from execution.campaign_runs as run
                                  where run.tenant_id = p_tenant_id
                                    and run.id = v_run_ids[n]
                                    and run.status = 'running')
                end;
    end loop;
end
$$;

COMMENT ON FUNCTION execution.note_progress(p_tenant_id uuid, p_worker_id text) IS 'Writes progress events of a tenant for the runs on which a worker works, and for reports that wait for their event. It counts before it locks, so no transaction waits for the counting, and it skips a campaign that another transaction has locked.';

CREATE FUNCTION execution.note_progress_of(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform execution.note_counted_progress(p_tenant_id, p_campaign_id, p_phase_id, p_progress, null);
end
$$;

COMMENT ON FUNCTION execution.note_progress_of(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric) IS 'Records the progress of a phase as note_counted_progress does, without the counts of a run. The caller has locked the campaign.';

CREATE FUNCTION execution.old_runs(p_tenant_id uuid, p_before timestamp with time zone) RETURNS TABLE(run_id uuid, is_archived boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select run.id, archive.run_id is not null
          from execution.campaign_runs as run
               left join execution.run_archives as archive on archive.tenant_id = p_tenant_id and archive.run_id = run.id
         where run.tenant_id = p_tenant_id
           and run.created_at < p_before
           and run.finished_at < p_before
           and archive.removed_at is null
           and not exists (select
                             from execution.job_queue as job
                                  join execution.channel_outbox as item
                                    on item.tenant_id = p_tenant_id
                                   and item.job_id = job.id
                                   and item.status = 'queued'
                            where job.tenant_id = p_tenant_id
                              and job.run_id = run.id
                              and job.status = 'dead')
         order by run.created_at, run.id;
end
$$;

COMMENT ON FUNCTION execution.old_runs(p_tenant_id uuid, p_before timestamp with time zone) IS 'Returns the runs of the tenant that ended before p_before and still have their jobs and items, oldest first, without those that have an item in doubt.';

CREATE FUNCTION execution.open_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_reason text, p_until_secret boolean DEFAULT false) RETURNS double precision
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_account_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    return execution.break_circuit(p_tenant_id, v_account_id, p_worker_id, p_reason, p_until_secret);
end
$$;

COMMENT ON FUNCTION execution.open_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_reason text, p_until_secret boolean) IS 'Opens the circuit of the account of a send job that the worker holds, as break_circuit does.';

CREATE FUNCTION execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN encode(sha256(convert_to((((((((p_run_id)::text || '|'::text) || (p_item_id)::text) || '|'::text) || p_key_part) || '|'::text) || execution.key_time(p_scheduled_for)), 'UTF8'::name)), 'hex'::text);

COMMENT ON FUNCTION execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamp with time zone) IS 'Computes the idempotency key of an item. postrider_model::key computes the same key, and a test compares the two.';

CREATE FUNCTION execution.phase_goal(p_trigger text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (p_trigger = ANY (ARRAY['start'::text, 'resume'::text, 'retry'::text, 'rerun'::text])) THEN 'in_progress'::text WHEN (p_trigger = 'pause'::text) THEN 'paused'::text WHEN (p_trigger = 'complete'::text) THEN 'completed'::text WHEN (p_trigger = 'fail'::text) THEN 'failed'::text ELSE NULL::text END;

COMMENT ON FUNCTION execution.phase_goal(p_trigger text) IS 'Returns the state that a trigger asks for, whatever the current state is.';

CREATE FUNCTION execution.phase_target(p_trigger text, p_from text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((p_trigger = 'start'::text) AND (p_from = 'not_started'::text)) THEN 'in_progress'::text WHEN ((p_trigger = 'resume'::text) AND (p_from = 'paused'::text)) THEN 'in_progress'::text WHEN ((p_trigger = 'retry'::text) AND (p_from = 'failed'::text)) THEN 'in_progress'::text WHEN ((p_trigger = 'rerun'::text) AND (p_from = 'completed'::text)) THEN 'in_progress'::text WHEN ((p_trigger = 'pause'::text) AND (p_from = 'in_progress'::text)) THEN 'paused'::text WHEN ((p_trigger = 'complete'::text) AND (p_from = 'in_progress'::text)) THEN 'completed'::text WHEN ((p_trigger = 'fail'::text) AND (p_from = 'in_progress'::text)) THEN 'failed'::text ELSE NULL::text END;

COMMENT ON FUNCTION execution.phase_target(p_trigger text, p_from text) IS 'Returns the state to which a trigger leads from a state, or null if the transition is not allowed. PHASE_MACHINE in the model is the same table, and a test compares the two.';

CREATE FUNCTION execution.prune_campaign_events(p_tenant_id uuid, p_before timestamp with time zone, p_limit integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before  constant timestamptz := least(p_before, now() - interval '1 hour');
    v_removed bigint := 0::bigint;
    v_part    bigint;
    v_campaign record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Delete the events of a campaign in their order under the lock of its row, so that a reader never sees a gap
    -- in the middle.
    for v_campaign in
        select old.campaign_id, max(old.sequence) as through
          from (select event.campaign_id, event.sequence
                  from execution.campaign_events as event
                 where event.tenant_id = p_tenant_id
                   and event.at < v_before
                 order by event.at, event.campaign_id, event.sequence
                 limit p_limit) as old
         group by old.campaign_id
         order by old.campaign_id
    loop
        -- Skip a campaign that another transaction has locked; the next call prunes it.
        perform
           from execution.campaigns as campaign
          where campaign.tenant_id = p_tenant_id
            and campaign.id = v_campaign.campaign_id
            for no key update skip locked;
        continue when not found;
        update execution.campaigns as campaign
           set pruned_through = greatest(campaign.pruned_through, v_campaign.through)
         where campaign.tenant_id = p_tenant_id
           and campaign.id = v_campaign.campaign_id;
        delete from execution.campaign_events as event
         where event.tenant_id = p_tenant_id
           and event.campaign_id = v_campaign.campaign_id
           and event.sequence <= v_campaign.through;
        get diagnostics v_part = row_count;
        v_removed := v_removed + v_part;
    end loop;
    return v_removed;
end
$$;

COMMENT ON FUNCTION execution.prune_campaign_events(p_tenant_id uuid, p_before timestamp with time zone, p_limit integer) IS 'Deletes events of one tenant that are older than p_before, and never those of the last hour, about p_limit per call. Returns the number of deleted events. A reader that asks for a deleted event is told to take a snapshot.';

CREATE FUNCTION execution.prune_run(p_tenant_id uuid, p_run_id uuid, p_limit integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_now constant timestamptz := now();
    v_ids uuid[];
    v_keys text[];
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_limit is null or p_limit < 10 then
        raise exception 'p_limit must be at least 10' using errcode = 'invalid_parameter_value';
    end if;
    if not exists (select from execution.run_archives as archive where archive.tenant_id = p_tenant_id and archive.run_id = p_run_id) then
        raise exception 'run % is not archived', p_run_id using errcode = 'invalid_parameter_value';
    end if;
    -- A job has the ids of up to 10000 items, so fewer jobs than items fit into a step.
    delete from execution.job_queue as job
     where job.tenant_id = p_tenant_id
       and job.id in (select old.id
                        from execution.job_queue as old
                       where old.tenant_id = p_tenant_id
                         and old.run_id = p_run_id
                       limit p_limit / 10
                         for update skip locked);
    get diagnostics v_removed = row_count;
    if v_removed > 0 then
        return v_removed;
    end if;
    select coalesce(array_agg(old.id), '{}'), coalesce(array_agg(old.idempotency_key), '{}')
      into v_ids, v_keys
      from (select item.id, item.idempotency_key
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.run_id = p_run_id
             limit p_limit
               for update skip locked) as old;
    delete from execution.provider_callbacks as callback
     using tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and callback.tenant_id = p_tenant_id
       and callback.account_id = account.id
       and callback.idempotency_key = any (v_keys);
    delete from execution.doubts as doubt
     where doubt.tenant_id = p_tenant_id
       and doubt.outbox_id = any (v_ids);
    delete from execution.channel_outbox as item
     where item.tenant_id = p_tenant_id
       and item.id = any (v_ids);
    get diagnostics v_removed = row_count;
    if v_removed = 0
       and not exists (select from execution.channel_outbox as item where item.tenant_id = p_tenant_id and item.run_id = p_run_id)
       and not exists (select from execution.job_queue as job where job.tenant_id = p_tenant_id and job.run_id = p_run_id)
    then
        update execution.run_archives as archive
           set removed_at = v_now
         where archive.tenant_id = p_tenant_id
           and archive.run_id = p_run_id
           and archive.removed_at is null;
    end if;
    return v_removed;
end
$$;

COMMENT ON FUNCTION execution.prune_run(p_tenant_id uuid, p_run_id uuid, p_limit integer) IS 'Deletes jobs, and when there are none left up to p_limit items with their callbacks, of an archived run. Returns the number of deleted jobs or items; 0 means that none is left.';

CREATE FUNCTION execution.put_off_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_next_look_at timestamp with time zone, p_is_for_person boolean, p_note text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    update execution.doubts as doubt
       set held_by = null,
           held_until = null,
           next_look_at = coalesce(p_next_look_at, doubt.next_look_at),
           is_for_person = p_is_for_person,
           note = left(p_note, 2000)
     where doubt.tenant_id = p_tenant_id
       and doubt.outbox_id = p_outbox_id;
    if p_is_for_person then
        insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
        select item.tenant_id, item.run_id, item.job_id, item.id, p_resolver_id, 'item.left_to_a_person', left(p_note, 2000)
          from execution.channel_outbox as item
         where item.tenant_id = p_tenant_id
           and item.id = p_outbox_id;
    end if;
end
$$;

COMMENT ON FUNCTION execution.put_off_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_next_look_at timestamp with time zone, p_is_for_person boolean, p_note text) IS 'Releases an item in doubt that could not be settled yet: a resolver looks again later, or the item waits for a person.';

CREATE FUNCTION execution.put_off_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_wait interval, p_why text, p_note text, p_whole_run boolean, p_limits jsonb DEFAULT NULL::jsonb) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_now constant timestamptz := now();
    v_until timestamptz := v_now + p_wait;
    v_limits jsonb;
    v_run_id uuid;
    v_others integer := 0;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    -- Lock the account before reading its limits: this waits for a concurrent change to commit.
    select account.limits
      into v_limits
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           join tenancy.provider_accounts as account
             on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
       for share of account;
    if p_why in ('rate', 'daily', 'hours') and v_limits <> p_limits then
        v_until := v_now;
    end if;
    perform execution.doubt_leftovers(p_tenant_id, p_job_id, p_worker_id);
    update execution.job_queue as job
       set status = 'queued',
           attempts = job.attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = greatest(job.run_after, v_until),
           waits_for = p_why
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
 returning job.run_id
      into v_run_id;
    if p_whole_run then
        with waiting as (
            select job.tenant_id, job.id
              from execution.job_queue as job
             where job.tenant_id = p_tenant_id
               and job.run_id = v_run_id
               and job.status = 'queued'
               -- Skip send jobs that another worker has just put off for the same reason.
               and job.run_after < v_until - interval '1 second'
             order by job.id
               for no key update skip locked
        )
        update execution.job_queue as job
           set run_after = v_until,
               waits_for = p_why
          from waiting
         where job.tenant_id = p_tenant_id
           and job.id = waiting.id;
        get diagnostics v_others = row_count;
    end if;
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, actor, action, note)
    values (p_tenant_id, v_run_id, p_job_id, p_worker_id, 'job.put_off',
            'until ' || to_char(v_until at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"') || ': ' || left(p_note, 500)
            || case when v_others > 0 then '; with ' || v_others || ' more send jobs of the run' else '' end);
    return v_others + 1;
end
$$;

COMMENT ON FUNCTION execution.put_off_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_wait interval, p_why text, p_note text, p_whole_run boolean, p_limits jsonb) IS 'Releases a send job until its account may be called again, and with p_whole_run the queued send jobs of its run too. If the limits of the account are no longer p_limits, the send job is due at once and the worker decides again. Returns the number of send jobs that wait.';

CREATE FUNCTION execution.read_account_states(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[]) RETURNS TABLE(tenant_id uuid, account_id uuid, wait_seconds double precision, circuit_seconds double precision)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    select distinct state.tenant_id,
           state.account_id,
           extract(epoch from nullif(greatest(state.wait_until, now()), now()) - now())::double precision,
           extract(epoch from state.circuit_open_until - now())::double precision
      from unnest(p_tenant_ids, p_job_ids) as held (tenant_id, id)
           join execution.job_queue as job on job.tenant_id = held.tenant_id and job.id = held.id
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           join execution.account_states as state
             on state.tenant_id = run.tenant_id
            and state.account_id in (run.provider_account_id, run.failover_account_id)
     where job.status = 'locked'
       and job.locked_by = p_worker_id
$$;

COMMENT ON FUNCTION execution.read_account_states(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[]) IS 'Returns the waits and circuits of the accounts of held send jobs, of any number of tenants, so that a process learns what other processes found.';

CREATE FUNCTION execution.read_accounts(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) RETURNS TABLE(account_id uuid, is_failover boolean, provider text, settings jsonb, sealed_secret bytea, limits jsonb, wait_seconds double precision, circuit_seconds double precision)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select account.id, used.is_failover, account.provider, account.settings, account.sealed_secret, account.limits,
               extract(epoch from nullif(greatest(state.wait_until, v_now), v_now) - v_now)::double precision,
               extract(epoch from state.circuit_open_until - v_now)::double precision
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
               cross join lateral (values (run.provider_account_id, false), (run.failover_account_id, true))
                          as used (id, is_failover)
               join tenancy.provider_accounts as account on account.tenant_id = run.tenant_id and account.id = used.id
               left join execution.account_states as state
                      on state.tenant_id = account.tenant_id
                     and state.account_id = account.id
         where job.tenant_id = p_tenant_id
           and job.id = p_job_id
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempt;
end
$$;

COMMENT ON FUNCTION execution.read_accounts(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) IS 'Returns the account and the failover account of a send job that the worker holds, with their limits, waits and circuits.';

CREATE FUNCTION execution.read_audience(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_with_begun boolean, OUT ids uuid[], OUT external_ids text[], OUT emails text[], OUT phones text[], OUT timezones text[], OUT attributes jsonb[], OUT suppression_reasons text[], OUT begun uuid[]) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
    v_job record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select job.item_ids, run.channel
      into v_job
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
       and job.status = 'locked'
       and job.locked_by = p_worker_id
       and job.attempts = p_attempt;
    if not found then
        return;
    end if;
    if v_job.channel = 'email' then
        select array_agg(lead.id), array_agg(lead.external_id), array_agg(lead.email), array_agg(lead.phone),
               array_agg(lead.timezone), array_agg(lead.attributes),
               array_agg(coalesce(lead.suppression_reason,
                                  (select other.suppression_reason
                                     from execution.leads as other
                                    where other.tenant_id = p_tenant_id
                                      and other.workspace_id = lead.workspace_id
                                      and lower(other.email) = lower(lead.email)
                                      and other.suppressed_at is not null
                                    limit 1)))
          into ids, external_ids, emails, phones, timezones, attributes, suppression_reasons
          from execution.leads as lead
         where lead.tenant_id = p_tenant_id
           and lead.id = any (v_job.item_ids);
    else
        select array_agg(lead.id), array_agg(lead.external_id), array_agg(lead.email), array_agg(lead.phone),
               array_agg(lead.timezone), array_agg(lead.attributes),
               array_agg(coalesce(lead.suppression_reason,
                                  (select other.suppression_reason
                                     from execution.leads as other
                                    where other.tenant_id = p_tenant_id
                                      and other.workspace_id = lead.workspace_id
                                      and other.phone = lead.phone
                                      and other.suppressed_at is not null
                                      and v_job.channel = 'voice'
                                    limit 1)))
          into ids, external_ids, emails, phones, timezones, attributes, suppression_reasons
          from execution.leads as lead
         where lead.tenant_id = p_tenant_id
           and lead.id = any (v_job.item_ids);
    end if;
    ids := coalesce(ids, '{}');
    if p_with_begun then
        begun := array(
            select item.recipient_id
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.job_id = p_job_id
               and item.recipient_id is not null
               and (item.status <> 'queued' or item.reserved_by is not null or item.in_doubt_since is not null));
    end if;
end
$$;

COMMENT ON FUNCTION execution.read_audience(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_with_begun boolean, OUT ids uuid[], OUT external_ids text[], OUT emails text[], OUT phones text[], OUT timezones text[], OUT attributes jsonb[], OUT suppression_reasons text[], OUT begun uuid[]) IS 'Returns the leads among the items of a send job that the worker holds, as arrays in no particular order; all are null if the worker does not hold the send job. A lead counts as suppressed if any lead with its address is. With p_with_begun, begun has the items that have an outbox row already and were not put back.';

CREATE FUNCTION execution.read_job(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) RETURNS TABLE(content jsonb, settings jsonb, sealed_secret bytea)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select asset.content, account.settings, account.sealed_secret
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
               join execution.assets as asset on asset.tenant_id = run.tenant_id and asset.id = run.asset_id
               left join tenancy.provider_accounts as account
                      on account.tenant_id = run.tenant_id
                     and account.id = run.provider_account_id
         where job.tenant_id = p_tenant_id
           and job.id = p_job_id
           and job.status = 'locked'
           and job.locked_by = p_worker_id
           and job.attempts = p_attempt;
end
$$;

COMMENT ON FUNCTION execution.read_job(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) IS 'Returns the content, and the settings and sealed secret of the account, of a send job that the worker holds. Returns no row if the worker does not hold the send job.';

CREATE FUNCTION execution.record_callback(p_tenant_id uuid, p_account_id uuid, p_idempotency_key text, p_message_id text, p_status text, p_proves_action boolean) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_item record;
    v_is_new boolean;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select item.id, item.run_id, item.job_id, account.provider
      into v_item
      from tenancy.provider_accounts as account
           join execution.channel_outbox as item
             on item.tenant_id = account.tenant_id
            and item.workspace_id = account.workspace_id
            and item.idempotency_key = p_idempotency_key
           join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
     where account.tenant_id = p_tenant_id
       and account.id = p_account_id
       and account.id = coalesce(item.moved_to_account_id, run.provider_account_id);
    if not found then
        return 'unknown';
    end if;
    insert into execution.provider_callbacks (tenant_id, account_id, idempotency_key, message_id, status, proves_action)
    values (p_tenant_id, p_account_id, p_idempotency_key, p_message_id, p_status, p_proves_action)
        on conflict do nothing;
    v_is_new := found;
    if not p_proves_action then
        return 'recorded';
    end if;
    perform from execution.job_queue as job where job.tenant_id = p_tenant_id and job.id = v_item.job_id for no key update;
    perform
       from execution.channel_outbox as item
      where item.tenant_id = p_tenant_id
        and item.id = v_item.id
        and item.status = 'queued'
        and item.in_doubt_since is not null
        for no key update;
    if found then
        perform execution.settle_in_doubt(
            p_tenant_id, v_item.id, 'sent', p_message_id,
            v_item.provider || ' called back: ' || p_message_id || ' is ' || p_status, 'callback-' || v_item.provider);
        return 'settled';
    end if;
    if v_is_new and exists (select
                              from execution.channel_outbox as item
                             where item.tenant_id = p_tenant_id
                               and item.id = v_item.id
                               and item.status = 'failed')
    then
        perform execution.audit(p_tenant_id, null, null, v_item.run_id, v_item.job_id, v_item.id,
                                'callback-' || v_item.provider, 'item.contradicted',
                                'the provider called back: ' || p_message_id || ' is ' || p_status);
        return 'contradicted';
    end if;
    return 'recorded';
end
$$;

COMMENT ON FUNCTION execution.record_callback(p_tenant_id uuid, p_account_id uuid, p_idempotency_key text, p_message_id text, p_status text, p_proves_action boolean) IS 'Stores a status callback of a provider about a call of this account of the tenant. A callback that proves the action settles an item in doubt at once. Returns settled, recorded, contradicted if the item was settled as failed, or unknown if no item of this account has this key.';

CREATE FUNCTION execution.refuse_change_of_callback() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if tg_op = 'DELETE'
       and (exists (select from execution.erasures as erasure where erasure.tenant_id = old.tenant_id and erasure.at = now())
            or exists (select from tenancy.tenants as tenant where tenant.id = old.tenant_id and tenant.removing_since is not null)
            or exists (select
                         from execution.channel_outbox as item
                              join execution.run_archives as archive
                                on archive.tenant_id = item.tenant_id and archive.run_id = item.run_id
                        where item.idempotency_key = old.idempotency_key
                          and item.tenant_id = old.tenant_id))
    then
        return old;
    end if;
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;

COMMENT ON FUNCTION execution.refuse_change_of_callback() IS 'Trigger function: refuses every change of a callback, and its deletion unless its run is archived, its tenant is being removed, or this transaction records an erasure.';

CREATE FUNCTION execution.refuse_jobs_of_archived_runs() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- begin_removal locks this row, so no send job is added during a removal, which deletes the items after the send jobs.
    perform
       from tenancy.tenants as tenant
      where tenant.id = new.tenant_id
        and tenant.removing_since is null
        for key share;
    if not found then
        raise exception 'execution.job_queue: a tenant that is being removed gets no jobs'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    if exists (select
                 from execution.run_archives as archive
                where archive.tenant_id = new.tenant_id
                  and archive.run_id = new.run_id)
    then
        raise exception 'execution.job_queue: an archived run gets no jobs, so no key of it is reserved again'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return new;
end
$$;

COMMENT ON FUNCTION execution.refuse_jobs_of_archived_runs() IS 'Trigger function: refuses a job of an archived run, or of a tenant that is being removed. verify_launch checks that the trigger exists.';

CREATE FUNCTION execution.refuse_unless_archived() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if exists (select
                 from execution.run_archives as archive
                where archive.tenant_id = old.tenant_id
                  and archive.run_id = old.run_id)
       or exists (select from tenancy.tenants as tenant where tenant.id = old.tenant_id and tenant.removing_since is not null)
    then
        return old;
    end if;
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;

COMMENT ON FUNCTION execution.refuse_unless_archived() IS 'Trigger function: refuses to delete a row of a run that is not archived, unless its tenant is being removed. The trigger argument is the reason in the error.';

CREATE FUNCTION execution.refuse_unless_launched() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if exists (select
                 from execution.campaign_runs as run
                where run.tenant_id = new.tenant_id
                  and run.id = new.run_id
                  and run.status in ('completed', 'partial', 'failed'))
       and not exists (select
                         from execution.job_queue as job
                        where job.tenant_id = new.tenant_id
                          and job.run_id = new.run_id
                          and job.status not in ('completed', 'dead'))
       and not exists (select
                         from execution.channel_outbox as item
                        where item.tenant_id = new.tenant_id
                          and item.run_id = new.run_id
                          and item.status = 'queued')
    then
        return new;
    end if;
    raise exception 'execution.run_archives: only a run that has ended, without an item in doubt, is archived'
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;

COMMENT ON FUNCTION execution.refuse_unless_launched() IS 'Trigger function: refuses to archive a run that has not ended, or that has an item in flight or in doubt.';

CREATE FUNCTION execution.release_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval DEFAULT '00:00:00'::interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_due_at constant timestamptz := now() + p_retry_after;
    v_phase_status text;
    v_run_id uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform execution.require_held(p_tenant_id, p_job_id, p_worker_id, p_attempt);
    perform execution.doubt_leftovers(p_tenant_id, p_job_id, p_worker_id);
    -- With the share lock, a concurrent resume waits and then finds the send job in its new place.
    select phase.status
      into strict v_phase_status
      from execution.job_queue as job
           join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
           join execution.campaign_phases as phase
             on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
       for share of phase;
    update execution.job_queue as job
       set status = 'queued',
           attempts = job.attempts - 1,
           locked_by = null,
           locked_at = null,
           run_after = case v_phase_status when 'paused' then 'infinity' else greatest(job.run_after, v_due_at) end
     where job.tenant_id = p_tenant_id
       and job.id = p_job_id
 returning job.run_id
      into v_run_id;
    perform execution.audit(p_tenant_id, null, null, v_run_id, p_job_id, null, p_worker_id, 'job.released', null);
end
$$;

COMMENT ON FUNCTION execution.release_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval) IS 'Releases a send job before its end: the worker stops, cannot do this kind of send job, or the phase is paused. A send job of a paused phase waits for the phase.';

CREATE FUNCTION execution.report_progress(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_progress numeric, p_actor text) RETURNS TABLE(outcome text, status text, kind text, reason text, sequence bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
declare
    v_campaign record;
    v_phase record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(btrim(p_actor), '') = '' then
        raise exception 'p_actor must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    if p_progress is null or p_progress not between 0 and 100 then
        raise exception 'progress is a percentage between 0 and 100' using errcode = 'invalid_parameter_value';
    end if;
    select campaign.sequence
      into v_campaign
      from execution.campaigns as campaign
     where campaign.tenant_id = p_tenant_id
       and campaign.id = p_campaign_id
       for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.id, phase.kind, phase.status
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
       for no key update;
    if not found then
        raise exception 'the campaign has no phase `%`', p_phase using errcode = 'no_data_found';
    end if;
    if v_phase.kind = 'delivery' or v_phase.status not in ('in_progress', 'paused') then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            case
                                when v_phase.kind = 'delivery' then 'the progress of a delivery is counted, not reported'
                                else 'a phase that is ' || v_phase.status || ' makes no progress'
                            end,
                            v_campaign.sequence;
        return;
    end if;
    perform execution.note_progress_of(p_tenant_id, p_campaign_id, v_phase.id, p_progress);
    return query
        select 'changed', v_phase.status, v_phase.kind, null::text, campaign.sequence
          from execution.campaigns as campaign
         where campaign.tenant_id = p_tenant_id
           and campaign.id = p_campaign_id;
end
$$;

COMMENT ON FUNCTION execution.report_progress(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_progress numeric, p_actor text) IS 'Records the progress that another service reports for an external phase of the tenant. outcome is changed or conflict, with the reason.';

CREATE FUNCTION execution.requeue_overdue_jobs(p_tenant_id uuid, p_worker_id text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    v_now constant timestamptz := now();
    v_job record;
    v_id  uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    for v_job in
        with stale as (
            select job.id, job.run_id, job.attempts, job.max_attempts, job.locked_by
              from execution.job_queue as job
             where job.tenant_id = p_tenant_id
               and job.status = 'locked'
               and job.locked_at < v_now - interval '5 minutes'
             order by job.locked_at
             limit 100
               for update skip locked
        )
        -- Ordered by run, because ending a run locks it: two concurrent calls cannot deadlock.
        select stale.* from stale order by stale.run_id, stale.id
    loop
        -- A hanging worker may hold locks on some of these items. Skip its send job instead of waiting, so that one such
        -- worker cannot block every claim; a later call tries again.
        begin
            perform
               from execution.channel_outbox as item
              where item.tenant_id = p_tenant_id
                and item.job_id = v_job.id
                and item.status = 'queued'
                and item.in_doubt_since is null
              order by item.id
                for no key update nowait;
        exception when lock_not_available then
            continue;
        end;
        if exists (select
                     from execution.campaign_runs as run
                          join execution.campaign_phases as phase
                            on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                    where run.tenant_id = p_tenant_id
                      and run.id = v_job.run_id
                      and phase.status = 'paused'
                      for share of phase)
        then
            -- The worker did not release the send job when its phase was paused. That uses up no attempt.
            perform execution.doubt_leftovers(p_tenant_id, v_job.id, p_worker_id);
            update execution.job_queue as job
               set status = 'queued',
                   attempts = job.attempts - 1,
                   locked_by = null,
                   locked_at = null,
                   run_after = 'infinity'
             where job.tenant_id = p_tenant_id
               and job.id = v_job.id;
            perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'its phase is paused; no heartbeat for five minutes from ' || v_job.locked_by);
        elsif v_job.attempts < v_job.max_attempts then
            perform execution.doubt_leftovers(p_tenant_id, v_job.id, p_worker_id);
            update execution.job_queue as job
               set status = 'queued',
                   locked_by = null,
                   locked_at = null,
                   last_error = 'its worker sent no heartbeat for five minutes'
             where job.tenant_id = p_tenant_id
               and job.id = v_job.id;
            perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.requeued',
                                    'no heartbeat for five minutes from ' || v_job.locked_by);
        else
            perform execution.end_attempt(p_tenant_id, v_job.id, p_worker_id, interval '0',
                                          'its worker sent no heartbeat for five minutes');
        end if;
    end loop;
    foreach v_id in array array(
        select retry.id
          from execution.job_queue as retry
         where retry.tenant_id = p_tenant_id
           and retry.status = 'failed'
           and retry.run_after <= v_now
         order by retry.run_after
         limit 100
           for update skip locked)
    loop
        update execution.job_queue as job
           set status = 'queued'
         where job.tenant_id = p_tenant_id
           and job.id = v_id
     returning job.run_id, job.id
          into v_job;
        perform execution.audit(p_tenant_id, null, null, v_job.run_id, v_job.id, null, p_worker_id, 'job.queued', null);
    end loop;
end
$$;

COMMENT ON FUNCTION execution.requeue_overdue_jobs(p_tenant_id uuid, p_worker_id text) IS 'Takes over the locks of a tenant''s send jobs that are older than five minutes, up to 100 at a time, and queues up to 100 retries that are due. Items that such a worker had reserved become in doubt.';

CREATE FUNCTION execution.require_erasure() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if not exists (select from execution.erasures as erasure where erasure.tenant_id = new.tenant_id and erasure.lead_id = new.id) then
        raise exception 'execution.leads: an erasure is recorded'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return new;
end
$$;

COMMENT ON FUNCTION execution.require_erasure() IS 'Trigger function: refuses to erase a lead without a row in execution.erasures.';

CREATE FUNCTION execution.require_held(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.limit_idle_time();
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = p_job_id
        and job.status = 'locked'
        and job.locked_by = p_worker_id
        and job.attempts = p_attempt
        for no key update;
    if not found then
        raise exception 'send job % is not held by % under attempt %', p_job_id, coalesce(p_worker_id, 'null'),
                        coalesce(p_attempt::text, 'null')
            using errcode = 'PR001',
                  hint = 'A lock lasts five minutes without a heartbeat; it may have gone stale and been taken over.';
    end if;
end
$$;

COMMENT ON FUNCTION execution.require_held(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer) IS 'Locks a send job of a tenant, and raises PR001 unless the worker holds it under this attempt.';

CREATE FUNCTION execution.require_held_doubt(p_tenant_id uuid, p_outbox_id uuid, p_resolver_id text, p_look integer) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform
       from execution.doubts as doubt
      where doubt.tenant_id = p_tenant_id
        and doubt.outbox_id = p_outbox_id
        and doubt.held_by = p_resolver_id
        and doubt.looks = p_look
        for no key update;
    if not found then
        raise exception 'the doubt about % is not held by % under look %', p_outbox_id, coalesce(p_resolver_id, 'null'),
                        coalesce(p_look::text, 'null')
            using errcode = 'PR001',
                  hint = 'Its lease expired and another resolver holds it, or it has been settled.';
    end if;
end
$$;

COMMENT ON FUNCTION execution.require_held_doubt(p_tenant_id uuid, p_outbox_id uuid, p_resolver_id text, p_look integer) IS 'Locks a doubt, and raises PR001 unless the resolver holds it under this look.';

CREATE FUNCTION execution.resolve_in_doubt(p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return execution.settle_in_doubt(p_tenant_id, p_outbox_id, p_as, p_provider_message_id, p_note, p_actor);
end
$$;

COMMENT ON FUNCTION execution.resolve_in_doubt(p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text) IS 'Settles an item in doubt of the tenant, on behalf of a person.';

CREATE FUNCTION execution.resolve_many_in_doubt(p_tenant_id uuid, p_outbox_ids uuid[], p_as text, p_provider_message_ids text[], p_note text, p_actor text) RETURNS TABLE(outbox_id uuid, status text, refusal text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    v_job_ids uuid[];
    v_item record;
    v_hint text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if coalesce(cardinality(p_outbox_ids), 0) not between 1 and 1000
       or cardinality(p_outbox_ids) is distinct from cardinality(p_provider_message_ids)
    then
        raise exception 'between 1 and 1000 items are resolved at a time, each with a message id or null'
            using errcode = 'invalid_parameter_value';
    end if;
    -- Lock the send jobs of all items in the order of their ids, so that two such calls cannot block each other.
    v_job_ids := array(
        select distinct item.job_id
          from execution.channel_outbox as item
         where item.tenant_id = p_tenant_id
           and item.id = any (p_outbox_ids));
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = any (v_job_ids)
      order by job.id
        for no key update;
    for v_item in
        select given.id, given.message_id
          from unnest(p_outbox_ids, p_provider_message_ids) with ordinality as given (id, message_id, place)
         order by given.place
    loop
        -- Each item has a savepoint: the refusal of one leaves the others settled.
        begin
            outbox_id := v_item.id;
            refusal := null;
            status := execution.settle_in_doubt(p_tenant_id, v_item.id, p_as, v_item.message_id, p_note, p_actor);
        exception
            when invalid_parameter_value or no_data_found then
                get stacked diagnostics v_hint = pg_exception_hint;
                status := null;
                refusal := sqlerrm || coalesce('. ' || nullif(v_hint, ''), '');
        end;
        return next;
    end loop;
end
$$;

COMMENT ON FUNCTION execution.resolve_many_in_doubt(p_tenant_id uuid, p_outbox_ids uuid[], p_as text, p_provider_message_ids text[], p_note text, p_actor text) IS 'Settles up to 1000 items in doubt of the tenant, on behalf of a person. Returns one row per item, in the given order: the status of a settled item, or the reason why the item was refused.';

CREATE FUNCTION execution.roll_quota(p_counts integer[], p_slot bigint, p_now_slot bigint) RETURNS integer[]
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    RETURN CASE WHEN ((p_slot IS NULL) OR (p_counts IS NULL) OR ((p_now_slot - p_slot) >= 13)) THEN array_fill(0, ARRAY[13]) ELSE ((array_fill(0, ARRAY[(GREATEST((p_now_slot - p_slot), (0)::bigint))::integer]) || p_counts))[1:13] END;

COMMENT ON FUNCTION execution.roll_quota(p_counts integer[], p_slot bigint, p_now_slot bigint) IS 'Moves the counts of a quota on to the current twelfth of its period. Thirteen twelfths are counted, so that no span of the length of the period holds more calls than the quota.';

CREATE FUNCTION execution.run_counts(p_tenant_id uuid, p_run_id uuid) RETURNS jsonb
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select jsonb_build_object(
               'id', progress.run_id, 'intended', progress.intended, 'succeeded', progress.succeeded, 'failed', progress.failed,
               'skipped', progress.skipped, 'inDoubt', progress.in_doubt, 'inFlight', progress.in_flight)
      from execution.run_progress(p_tenant_id, array[p_run_id]) as progress
$$;

COMMENT ON FUNCTION execution.run_counts(p_tenant_id uuid, p_run_id uuid) IS 'Returns the counts of a run''s items as progress events carry them. Null if the tenant has no such run.';

CREATE FUNCTION execution.run_progress(p_tenant_id uuid, p_run_ids uuid[]) RETURNS TABLE(run_id uuid, intended bigint, jobs_queued bigint, jobs_locked bigint, jobs_retrying bigint, jobs_completed bigint, jobs_dead bigint, succeeded bigint, failed bigint, skipped bigint, in_doubt bigint, in_flight bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET jit TO 'off'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select tenancy.require_tenant(p_tenant_id);
    select run.id,
           run.intended,
           jobs.queued,
           jobs.locked,
           jobs.retrying,
           coalesce(archive.jobs_completed, jobs.completed),
           coalesce(archive.jobs_dead, jobs.dead),
           coalesce(archive.sent + archive.called + archive.posted, jobs.succeeded),
           coalesce(archive.failed, jobs.failed),
           coalesce(archive.skipped, jobs.skipped),
           jobs.in_doubt,
           jobs.in_flight
      from execution.campaign_runs as run
           left join execution.run_archives as archive on archive.tenant_id = run.tenant_id and archive.run_id = run.id
           cross join lateral (
               select count(*) filter (where job.status = 'queued') as queued,
                      count(*) filter (where job.status = 'locked') as locked,
                      count(*) filter (where job.status = 'failed') as retrying,
                      count(*) filter (where job.status = 'completed') as completed,
                      count(*) filter (where job.status = 'dead') as dead,
                      coalesce(sum(case when done.is_done then job.succeeded else items.succeeded end), 0)::bigint as succeeded,
                      coalesce(sum(case when done.is_done then job.failed else items.failed end), 0)::bigint as failed,
                      coalesce(sum(case when done.is_done then job.skipped else items.skipped end), 0)::bigint as skipped,
                      coalesce(sum(items.in_doubt), 0)::bigint as in_doubt,
                      coalesce(sum(items.reserved - items.in_doubt), 0)::bigint as in_flight
                 from execution.job_queue as job
                      cross join lateral (
                          select case job.status
                                     when 'completed' then true
                                     when 'dead' then job.succeeded + job.failed + job.skipped = cardinality(job.item_ids)
                                     else false
                                 end as is_done) as done
                      cross join lateral (
                          select count(*) filter (where item.status in ('sent', 'called', 'posted')) as succeeded,
                                 count(*) filter (where item.status = 'failed') as failed,
                                 count(*) filter (where item.status = 'skipped') as skipped,
                                 count(*) filter (where item.status = 'queued'
                                                    and (item.reserved_by is not null or item.in_doubt_since is not null)) as reserved,
                                 count(execution.doubted_since(
                                           item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at,
                                           job.status, job.locked_by, job.locked_at, job.attempts)) as in_doubt
                            from execution.channel_outbox as item
                           where item.tenant_id = job.tenant_id
                             and item.job_id = job.id
                             and not done.is_done) as items
                where job.tenant_id = run.tenant_id
                  and job.run_id = run.id) as jobs
     where run.tenant_id = p_tenant_id
       and run.id = any (p_run_ids)
$$;

COMMENT ON FUNCTION execution.run_progress(p_tenant_id uuid, p_run_ids uuid[]) IS 'Counts the send jobs and items of runs of the tenant by status.';

CREATE FUNCTION execution.runs_since_all(p_tenant_id uuid, p_phase_id uuid) RETURNS uuid[]
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select array(select run.id
                   from execution.campaign_runs as run
                  where run.tenant_id = p_tenant_id
                    and run.phase_id = p_phase_id
                    and run.number >= (select max(whole.number)
                                         from execution.campaign_runs as whole
                                        where whole.tenant_id = p_tenant_id
                                          and whole.phase_id = p_phase_id
                                          and whole.cause <> 'retry')
                  order by run.number desc)
$$;

COMMENT ON FUNCTION execution.runs_since_all(p_tenant_id uuid, p_phase_id uuid) IS 'Returns the runs of a phase since it was last sent to its whole audience, newest first.';

CREATE FUNCTION execution.settle_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_as text, p_provider_message_id text, p_evidence text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    -- Lock the send job, then the item, then the doubt, as every function does.
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = (select item.job_id
                        from execution.channel_outbox as item
                       where item.tenant_id = p_tenant_id
                         and item.id = p_outbox_id)
        for no key update;
    perform from execution.channel_outbox as item
      where item.tenant_id = p_tenant_id
        and item.id = p_outbox_id
        for no key update;
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    return execution.settle_in_doubt(p_tenant_id, p_outbox_id, p_as, p_provider_message_id, p_evidence, p_resolver_id);
end
$$;

COMMENT ON FUNCTION execution.settle_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_as text, p_provider_message_id text, p_evidence text) IS 'Settles an item in doubt that the resolver holds, with its evidence.';

CREATE FUNCTION execution.settle_in_doubt(p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_item record;
    v_status text;
begin
    if coalesce(p_as, '') not in ('sent', 'failed') then
        raise exception 'an item is resolved as sent or as failed, not as %', coalesce(p_as, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    if coalesce(btrim(p_note), '') = '' or coalesce(btrim(p_actor), '') = '' then
        raise exception 'a resolution needs a note that says how it is known, and who says so'
            using errcode = 'invalid_parameter_value';
    end if;
    -- Lock the send job before its item, as every function does. Of two settlements of the last items, the later one
    -- then sees both.
    perform
       from execution.job_queue as job
      where job.tenant_id = p_tenant_id
        and job.id = (select item.job_id
                        from execution.channel_outbox as item
                       where item.tenant_id = p_tenant_id
                         and item.id = p_outbox_id)
        for no key update;
    select item.*, run.quiet_time, job.status as job_status,
           execution.doubted_since(item.status, item.in_doubt_since, item.reserved_by, item.attempt, item.created_at,
                                   job.status, job.locked_by, job.locked_at, job.attempts) as since
      into v_item
      from execution.channel_outbox as item
           join execution.job_queue as job on job.tenant_id = item.tenant_id and job.id = item.job_id
           join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
     where item.tenant_id = p_tenant_id
       and item.id = p_outbox_id
       for no key update of item;
    if not found then
        raise exception 'there is no item %', p_outbox_id
            using errcode = 'no_data_found', hint = '`postrider in-doubt list` shows what is in doubt.';
    end if;
    if v_item.status <> 'queued' then
        raise exception 'item % is % already', p_outbox_id, v_item.status
            using errcode = 'invalid_parameter_value',
                  hint = 'An item that has ended is never reopened; `postrider trace` shows its history.';
    end if;
    if v_item.since is null then
        raise exception 'item % is not in doubt: its worker is at work', p_outbox_id
            using errcode = 'invalid_parameter_value', hint = 'Look again in a minute.';
    end if;
    if p_as = 'failed' and v_now < v_item.since + v_item.quiet_time then
        raise exception 'item % may still arrive until %', p_outbox_id,
                        to_char((v_item.since + v_item.quiet_time) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS"Z"')
            using errcode = 'invalid_parameter_value',
                  hint = 'That it was not sent counts only after the quiet time. That it was sent counts at once.';
    end if;

    v_status := case p_as when 'sent' then execution.success_of(v_item.channel) else 'failed' end;
    update execution.channel_outbox
       set status = v_status,
           provider_message_id = left(p_provider_message_id, 500),
           error = case when p_as = 'failed' then left(p_note, 2000) end,
           finalized_at = v_now,
           in_doubt_since = null
     where tenant_id = p_tenant_id
       and id = p_outbox_id;
    perform execution.audit(p_tenant_id, null, null, v_item.run_id, v_item.job_id, p_outbox_id, p_actor,
                            'item.resolved_as_' || v_status, left(p_note, 2000));
    -- No other item keeps the send job waiting: make it due now.
    if v_item.job_status = 'failed'
       and not exists (select
                         from execution.channel_outbox as item
                        where item.tenant_id = p_tenant_id
                          and item.job_id = v_item.job_id
                          and item.status = 'queued')
    then
        update execution.job_queue
           set run_after = least(run_after, v_now)
         where tenant_id = p_tenant_id
           and id = v_item.job_id
           and status = 'failed';
    end if;
    return v_status;
end
$$;

COMMENT ON FUNCTION execution.settle_in_doubt(p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text) IS 'Settles an item in doubt as sent (stored as the success status of its channel) or as failed, with a note that names the evidence. Evidence that it was sent counts at any time; evidence that it was not sent counts only after the quiet time.';

CREATE FUNCTION execution.shelve_jobs(p_tenant_id uuid, p_run_id uuid) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    update execution.job_queue as job
       set run_after = 'infinity',
           waits_for = null
      from (select waiting.tenant_id, waiting.id
              from execution.job_queue as waiting
             where waiting.tenant_id = p_tenant_id
               and waiting.run_id = p_run_id
               and waiting.status = 'queued'
               and waiting.run_after < 'infinity'
             order by waiting.id
               for no key update skip locked) as waiting
     where job.tenant_id = p_tenant_id
       and job.id = waiting.id
$$;

COMMENT ON FUNCTION execution.shelve_jobs(p_tenant_id uuid, p_run_id uuid) IS 'Sets run_after of the queued send jobs of a paused run to infinity, so that no claim takes them. It skips a send job that a claim has locked; the worker releases such a send job when it cannot reserve.';

CREATE FUNCTION execution.start_phase(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_size integer, p_actor text, p_reason text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_run_id uuid;
    v_items integer;
begin
    if exists (select from execution.campaign_phases
                where tenant_id = p_tenant_id and id = p_phase_id and kind = 'delivery')
    then
        v_run_id := execution.create_run(p_tenant_id, p_phase_id, p_run_id, 'start', p_job_size, p_actor);
        select run.intended
          into v_items
          from execution.campaign_runs as run
         where run.tenant_id = p_tenant_id
           and run.id = v_run_id;
    end if;
    -- The phase was started, so the reason why it could not be started automatically no longer holds.
    update execution.campaigns
       set not_advanced = null
     where tenant_id = p_tenant_id
       and id = p_campaign_id
       and not_advanced is not null;
    return execution.enter_phase_state(p_tenant_id, p_campaign_id, p_phase_id, 'start', v_run_id, p_actor,
                                       jsonb_strip_nulls(jsonb_build_object('items', v_items, 'reason', p_reason)));
end
$$;

COMMENT ON FUNCTION execution.start_phase(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_size integer, p_actor text, p_reason text) IS 'Starts a phase that was not started: creates a run of the whole audience for a delivery, and only changes the state of an external phase. Returns the number of the event. The caller has locked the campaign and the phase.';

CREATE FUNCTION execution.success_of(p_channel text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE p_channel WHEN 'email'::text THEN 'sent'::text WHEN 'voice'::text THEN 'called'::text WHEN 'social'::text THEN 'posted'::text ELSE NULL::text END;

COMMENT ON FUNCTION execution.success_of(p_channel text) IS 'Returns the status of a successful item on a channel: sent, called or posted.';

CREATE FUNCTION execution.suppress_erased_leads(p_tenant_id uuid, p_workspace_id uuid, p_lead_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    update execution.leads as lead
       set suppressed_at = kept.suppressed_at,
           suppression_reason = 'suppressed before erasure',
           updated_at = v_now
      from (select imported.id, min(known.suppressed_at) as suppressed_at
              from execution.leads as imported
                   cross join lateral unnest(execution.address_hashes(p_tenant_id, imported.email, imported.phone,
                                                                      imported.external_id)) as address (hash)
                   join execution.suppressed_addresses as known
                     on known.tenant_id = p_tenant_id
                    and known.workspace_id = p_workspace_id
                    and known.hash = address.hash
             where imported.tenant_id = p_tenant_id
               and imported.id = any (p_lead_ids)
               and imported.suppressed_at is null
             group by imported.id) as kept
     where lead.tenant_id = p_tenant_id
       and lead.id = kept.id;
end
$$;

COMMENT ON FUNCTION execution.suppress_erased_leads(p_tenant_id uuid, p_workspace_id uuid, p_lead_ids uuid[]) IS 'Suppresses those of the leads that have an address of an erased person who was suppressed.';

CREATE FUNCTION execution.suppress_lead(p_tenant_id uuid, p_lead_id uuid, p_reason text, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update execution.leads
       set suppressed_at = v_now,
           suppression_reason = coalesce(nullif(btrim(p_reason), ''), 'suppressed'),
           updated_at = v_now
     where tenant_id = p_tenant_id
       and id = p_lead_id
       and suppressed_at is null;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
        values (p_tenant_id, p_actor, 'lead.suppressed', 'lead:' || p_lead_id, p_reason);
    end if;
    return exists (select from execution.leads where tenant_id = p_tenant_id and id = p_lead_id);
end
$$;

COMMENT ON FUNCTION execution.suppress_lead(p_tenant_id uuid, p_lead_id uuid, p_reason text, p_actor text) IS 'Suppresses a lead of the tenant: no further message is sent to it. Returns false if the lead does not exist. Repeating the call changes nothing.';

CREATE FUNCTION execution.take_call_token_for_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_rate double precision DEFAULT NULL::double precision, p_quota_calls integer DEFAULT NULL::integer, p_quota_seconds double precision DEFAULT NULL::double precision) RETURNS TABLE(granted boolean, wait_seconds double precision)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    c_ahead constant double precision := 1.0::double precision;
    v_account_id uuid;
    v_limits jsonb;
    v_state execution.account_states;
    v_now timestamptz;
    v_until timestamptz;
    v_rate double precision;
    v_burst double precision;
    v_tokens double precision;
    v_quota integer;
    v_slot bigint;
    v_today date;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    -- repeated_at must survive a crash, whatever the settings of the login are: the next repeat relies on it.
    perform tenancy.require_durable_commit();
    perform execution.require_held_doubt(p_tenant_id, p_outbox_id, p_resolver_id, p_look);
    -- A paused phase starts no call, and repeats none.
    if exists (select
                 from execution.channel_outbox as item
                      join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
                      join execution.campaign_phases as phase
                        on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
                where item.tenant_id = p_tenant_id
                  and item.id = p_outbox_id
                  and phase.status = 'paused')
    then
        return query select false, 30.0::double precision;
        return;
    end if;
    select doubt.account_id, account.limits
      into v_account_id, v_limits
      from execution.doubts as doubt
           left join tenancy.provider_accounts as account
                  on account.tenant_id = doubt.tenant_id
                 and account.id = doubt.account_id
     where doubt.tenant_id = p_tenant_id
       and doubt.outbox_id = p_outbox_id;
    insert into execution.account_states (tenant_id, account_id) values (p_tenant_id, v_account_id) on conflict do nothing;
    select state.*
      into strict v_state
      from execution.account_states as state
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       for no key update;
    -- Read the clock after the lock was granted: earlier callers have used up their tokens by then.
    v_now := clock_timestamp();
    v_until := greatest(v_state.wait_until, v_state.circuit_open_until);
    if v_until > v_now then
        return query select false, extract(epoch from v_until - v_now)::double precision;
        return;
    end if;
    granted := true;
    wait_seconds := 0;
    -- Unlike the daily limit, which is the tenant's, the quota is the provider's: it also delays a repeat.
    v_quota := coalesce((v_limits #>> '{quota,calls}')::integer, p_quota_calls);
    if v_quota is not null then
        v_slot := floor(extract(epoch from v_now) * 12
                        / coalesce((v_limits #>> '{quota,seconds}')::double precision, p_quota_seconds))::bigint;
        v_state.quota_counts := execution.roll_quota(v_state.quota_counts, v_state.quota_slot, v_slot);
        v_state.quota_slot := v_slot;
        granted := (select sum(counted.calls) from unnest(v_state.quota_counts) as counted (calls)) < v_quota;
        wait_seconds := case when granted then 0.0::double precision else 60.0::double precision end;
    end if;
    v_rate := coalesce((v_limits ->> 'rate_per_second')::double precision, p_rate);
    if v_rate is not null then
        v_burst := greatest(coalesce((v_limits ->> 'burst')::double precision, v_rate / 5), 1);
        v_tokens := case
                        when v_state.refilled_at is null then v_burst
                        else least(v_burst, v_state.tokens + v_rate * greatest(extract(epoch from v_now - v_state.refilled_at), 0))
                    end;
        granted := granted and v_tokens + v_rate * c_ahead >= 1;
        wait_seconds := greatest((1 - v_tokens) / v_rate - case when granted then 0 else c_ahead end, wait_seconds, 0);
        v_state.tokens := v_tokens - case when granted then 1 else 0 end;
        v_state.refilled_at := v_now;
    end if;
    if v_quota is not null and granted then
        v_state.quota_counts[1] := v_state.quota_counts[1] + 1;
    end if;
    v_today := (v_now at time zone coalesce(v_limits #>> '{hours,time_zone}', v_limits ->> 'time_zone', 'UTC'))::date;
    update execution.account_states as state
       set tokens = v_state.tokens,
           refilled_at = v_state.refilled_at,
           quota_counts = v_state.quota_counts,
           quota_slot = v_state.quota_slot,
           day = v_today,
           used_today = case when v_today is distinct from state.day then 0 else state.used_today end
                        + case when granted then 1 else 0 end
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id;
    if granted then
        update execution.doubts as doubt
           set repeated_at = v_now + wait_seconds * interval '1 second'
         where doubt.tenant_id = p_tenant_id
           and doubt.outbox_id = p_outbox_id;
    end if;
    return next;
end
$$;

COMMENT ON FUNCTION execution.take_call_token_for_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_rate double precision, p_quota_calls integer, p_quota_seconds double precision) IS 'Grants a call token for repeating the call of an item that the resolver holds, and returns how long to wait before it is used; or false, and the time until the next try. A paused phase gets none.';

CREATE FUNCTION execution.take_call_tokens(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_wanted integer, p_failover boolean DEFAULT false, p_rate double precision DEFAULT NULL::double precision, p_again boolean DEFAULT false, p_quota_calls integer DEFAULT NULL::integer, p_quota_seconds double precision DEFAULT NULL::double precision) RETURNS TABLE(granted integer, wait_seconds double precision, why text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
#variable_conflict use_column
declare
    c_ahead constant double precision := 1.0::double precision;
    v_account_id uuid;
    v_state execution.account_states;
    v_limits jsonb;
    v_now timestamptz;
    v_rate double precision;
    v_burst double precision;
    v_zone text;
    v_today date;
    v_tokens double precision;
    v_quota integer;
    v_slot_seconds double precision;
    v_slot bigint;
    v_oldest bigint;
    v_is_probe boolean := false;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_wanted is null or p_wanted < 1 then
        raise exception 'p_wanted must be at least 1, not %', coalesce(p_wanted::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    v_account_id := execution.held_account(p_tenant_id, p_worker_id, p_job_id, p_attempt, p_failover);
    select account.limits
      into v_limits
      from tenancy.provider_accounts as account
     where account.tenant_id = p_tenant_id
       and account.id = v_account_id;
    select state.*
      into strict v_state
      from execution.account_states as state
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id
       for no key update;
    -- After a crash of the server the token bucket may be slightly too full once. The calls of a day are counted
    -- and must survive a crash.
    v_quota := coalesce((v_limits #>> '{quota,calls}')::integer, p_quota_calls);
    if v_limits ->> 'daily' is null and v_quota is null then
        perform set_config('synchronous_commit', 'off', true);
    end if;
    -- Read the clock after the lock was granted: earlier callers have used up their tokens by then.
    v_now := clock_timestamp();
    granted := p_wanted;
    wait_seconds := 0;

    if not p_again then
        if v_state.wait_until > v_now then
            return query select 0, extract(epoch from v_state.wait_until - v_now)::double precision, 'retry_after';
            return;
        end if;
        if v_state.circuit_open_until > v_now then
            return query select 0, extract(epoch from v_state.circuit_open_until - v_now)::double precision, 'circuit';
            return;
        end if;
        if v_state.circuit_open_until is not null then
            if v_state.probe_until > v_now and v_state.probe_job_id <> p_job_id then
                return query select 0, 0.5::double precision, 'circuit';
                return;
            end if;
            v_is_probe := true;
            granted := 1;
        end if;
    end if;

    v_zone := coalesce(v_limits #>> '{hours,time_zone}', v_limits ->> 'time_zone', 'UTC');
    v_today := (v_now at time zone v_zone)::date;
    if v_today is distinct from v_state.day then
        v_state.used_today := 0;
    end if;
    if v_limits ->> 'daily' is not null and not p_again then
        granted := least(granted, (v_limits ->> 'daily')::bigint - v_state.used_today)::integer;
        if granted < 1 then
            return query
                select 0, extract(epoch from (v_today + 1)::timestamp at time zone v_zone - v_now)::double precision, 'daily';
            return;
        end if;
    end if;

    if v_quota is not null then
        v_slot_seconds := coalesce((v_limits #>> '{quota,seconds}')::double precision, p_quota_seconds) / 12;
        v_slot := floor(extract(epoch from v_now) / v_slot_seconds)::bigint;
        v_state.quota_counts := execution.roll_quota(v_state.quota_counts, v_state.quota_slot, v_slot);
        v_state.quota_slot := v_slot;
        if not p_again then
            granted := least(granted, v_quota - (select sum(counted.calls) from unnest(v_state.quota_counts) as counted (calls)))::integer;
            if granted < 1 then
                -- Calls are free again when the oldest twelfth with a call is no longer counted.
                select max(counted.place)
                  into v_oldest
                  from unnest(v_state.quota_counts) with ordinality as counted (calls, place)
                 where counted.calls > 0;
                return query
                    select 0, greatest((v_slot - (v_oldest - 1) + 13) * v_slot_seconds - extract(epoch from v_now)::double precision, 0.1),
                           'rate';
                return;
            end if;
        end if;
    end if;

    v_rate := coalesce((v_limits ->> 'rate_per_second')::double precision, p_rate);
    if v_rate is not null then
        v_burst := greatest(coalesce((v_limits ->> 'burst')::double precision, v_rate / 5), 1);
        v_tokens := case
                        -- The bucket is full at the first call.
                        when v_state.refilled_at is null then v_burst
                        else least(v_burst, v_state.tokens + v_rate * greatest(extract(epoch from v_now - v_state.refilled_at), 0))
                    end;
        granted := least(granted, floor(v_tokens + v_rate * c_ahead))::integer;
        if granted < 1 then
            granted := 0;
            wait_seconds := (1 - v_tokens) / v_rate - c_ahead;
            why := 'rate';
        else
            wait_seconds := greatest((granted - v_tokens) / v_rate, 0);
            why := case when wait_seconds > 0 then 'rate' end;
        end if;
        v_state.tokens := v_tokens - granted;
        v_state.refilled_at := v_now;
    end if;
    if v_quota is not null then
        v_state.quota_counts[1] := v_state.quota_counts[1] + granted;
    end if;

    update execution.account_states as state
       set tokens = v_state.tokens,
           refilled_at = v_state.refilled_at,
           quota_counts = v_state.quota_counts,
           quota_slot = v_state.quota_slot,
           day = v_today,
           used_today = v_state.used_today + granted,
           probe_job_id = case when v_is_probe and granted > 0 then p_job_id else state.probe_job_id end,
           probe_until = case when v_is_probe and granted > 0 then v_now + interval '2 minutes' else state.probe_until end
     where state.tenant_id = p_tenant_id
       and state.account_id = v_account_id;
    return next;
end
$$;

COMMENT ON FUNCTION execution.take_call_tokens(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_wanted integer, p_failover boolean, p_rate double precision, p_again boolean, p_quota_calls integer, p_quota_seconds double precision) IS 'Grants up to p_wanted call tokens of an account for a send job that the worker holds, and returns how long to wait before they are used; or 0, with the reason and the time until the next try. All times are those of the database.';

CREATE FUNCTION execution.tenants_with_due_doubts(p_providers text[], p_limit integer, p_except_tenants uuid[] DEFAULT '{}'::uuid[], p_except_accounts uuid[] DEFAULT '{}'::uuid[]) RETURNS TABLE(tenant_id uuid, doubts integer)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    select due.tenant_id, count(*)::integer
      from (select doubt.tenant_id, doubt.next_look_at
              from execution.doubts as doubt
             where not doubt.is_for_person
               and doubt.next_look_at <= now()
               and (doubt.held_until is null or doubt.held_until < now())
               and doubt.provider = any (p_providers)
               and not exists (select
                                 from unnest(p_except_tenants, p_except_accounts) as busy (tenant_id, account_id)
                                where busy.tenant_id = doubt.tenant_id
                                  and busy.account_id = doubt.account_id)
             order by doubt.next_look_at
             limit p_limit) as due
     group by due.tenant_id
     order by min(due.next_look_at)
$$;

COMMENT ON FUNCTION execution.tenants_with_due_doubts(p_providers text[], p_limit integer, p_except_tenants uuid[], p_except_accounts uuid[]) IS 'Chooses up to p_limit items in doubt that are due for a look, of the given providers, the longest due first, and returns their number per tenant. Leaves out the accounts in p_except_tenants and p_except_accounts. Locks nothing; claim_doubts then claims per tenant.';

CREATE FUNCTION execution.tenants_with_due_jobs(p_limit integer, p_except uuid[] DEFAULT '{}'::uuid[], p_except_run_tenants uuid[] DEFAULT '{}'::uuid[], p_except_runs uuid[] DEFAULT '{}'::uuid[]) RETURNS TABLE(tenant_id uuid, jobs integer, is_overdue boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_now       constant timestamptz := now();
    v_tenant_id uuid := '00000000-0000-0000-0000-000000000000'::uuid;
    v_due_at    timestamptz;
    v_overdue   uuid[];
    v_tenants   uuid[] := '{}'::uuid[];
    v_jobs      integer[] := '{}'::integer[];
    v_except    uuid[];
    v_share     integer;
    v_left      integer := p_limit;
    v_found     integer;
begin
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'the limit must lie between 1 and 1000, not %', coalesce(p_limit::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;
    v_overdue := array(
        select distinct oldest.tenant_id
          from ((select job.tenant_id
                   from execution.job_queue as job
                  where job.status = 'locked'
                    and job.locked_at < v_now - interval '5 minutes'
                  order by job.locked_at
                  limit 100)
                union all
                (select retry.tenant_id
                   from execution.job_queue as retry
                  where retry.status = 'failed'
                    and retry.run_after <= v_now
                  order by retry.run_after
                  limit 100)) as oldest);
    -- One index lookup per tenant that has a queued send job.
    loop
        select job.tenant_id, job.run_after
          into v_tenant_id, v_due_at
          from execution.job_queue as job
         where job.status = 'queued'
           and job.tenant_id > v_tenant_id
         order by job.tenant_id, job.run_after
         limit 1;
        exit when not found;
        if v_due_at <= v_now and v_tenant_id <> all (p_except) then
            v_tenants := v_tenants || v_tenant_id;
        end if;
    end loop;
    v_tenants := array(
        select waiting.tenant_id
          from unnest(v_tenants) as waiting (tenant_id)
               left join execution.claim_order as place on place.tenant_id = waiting.tenant_id
         order by place.last_claim_at nulls first, waiting.tenant_id);

    -- Round 1 gives each tenant an equal share. Round 2 gives the rest to tenants that have more send jobs.
    v_share := greatest(1, p_limit / greatest(1, cardinality(v_tenants)));
    for v_round in 1..2 loop
        for v_place in 1..cardinality(v_tenants) loop
            exit when v_left < 1;
            if v_round = 1 then
                v_jobs := v_jobs || 0;
            end if;
            continue when v_round = 2 and v_jobs[v_place] < v_share;
            v_except := array(
                select excepted.run_id
                  from unnest(p_except_run_tenants, p_except_runs) as excepted (tenant_id, run_id)
                 where excepted.tenant_id = v_tenants[v_place]);
            v_found := (
                select count(*)::integer
                  from (select
                          from execution.job_queue as job
                         where job.tenant_id = v_tenants[v_place]
                           and job.status = 'queued'
                           and job.run_after <= v_now
                           -- The case hides the condition from the planner, so that it reads the index in order and
                           -- stops at the limit.
                           and case when cardinality(v_except) = 0 then true else job.run_id <> all (v_except) end
                         order by job.run_after, job.id
                         limit v_jobs[v_place] + least(case v_round when 1 then v_share else p_limit end, v_left)) as due);
            v_left := v_left - (v_found - v_jobs[v_place]);
            v_jobs[v_place] := v_found;
        end loop;
    end loop;

    for v_place in 1..cardinality(v_jobs) loop
        continue when v_jobs[v_place] = 0;
        tenant_id := v_tenants[v_place];
        jobs := v_jobs[v_place];
        is_overdue := tenant_id = any (v_overdue);
        v_overdue := array_remove(v_overdue, tenant_id);
        return next;
    end loop;
    return query select overdue.tenant_id, 0, true from unnest(v_overdue) as overdue (tenant_id);
end
$$;

COMMENT ON FUNCTION execution.tenants_with_due_jobs(p_limit integer, p_except uuid[], p_except_run_tenants uuid[], p_except_runs uuid[]) IS 'Chooses up to p_limit send jobs that are due and returns their number per tenant. The tenant that was served longest ago comes first; each gets an equal share, and the rest goes to tenants that have more send jobs. Leaves out the tenants in p_except and the runs in p_except_run_tenants and p_except_runs. is_overdue marks tenants with send jobs for requeue_overdue_jobs; call it and choose again. Locks nothing; claim_queued_jobs then claims per tenant.';

CREATE FUNCTION execution.tenants_with_due_phases(p_limit integer) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    -- A random order, so that a tenant whose phase always fails does not block the others.
    select due.tenant_id
      from (select distinct phase.tenant_id
              from execution.campaign_phases as phase
             where phase.due is not null) as due
     order by random()
     limit p_limit
$$;

COMMENT ON FUNCTION execution.tenants_with_due_phases(p_limit integer) IS 'Chooses up to p_limit tenants that have a phase with something due, in random order. Locks nothing; tend_phase then processes one phase of a tenant.';

CREATE FUNCTION execution.tenants_with_due_progress(p_worker_id text) RETURNS TABLE(tenant_id uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before constant timestamptz := clock_timestamp() - interval '500 milliseconds';
begin
    return query
        select distinct due.tenant_id
          from (select run.tenant_id, run.campaign_id
                  from execution.job_queue as job
                       join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
                 where job.status = 'locked'
                   and job.locked_by = p_worker_id
                   and run.status = 'running'
                union all
                select phase.tenant_id, phase.campaign_id
                  from execution.campaign_phases as phase
                 where phase.progress_reported is not null) as due
               join execution.campaigns as campaign
                 on campaign.tenant_id = due.tenant_id and campaign.id = due.campaign_id
         where campaign.progress_at is null or campaign.progress_at <= v_before;
end
$$;

COMMENT ON FUNCTION execution.tenants_with_due_progress(p_worker_id text) IS 'Returns the tenants with a campaign whose progress may be written now: a run on which the worker works, or a report that waits for its event. Locks nothing; note_progress then writes per tenant.';

CREATE FUNCTION execution.tenants_with_old_history(p_before timestamp with time zone) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select distinct event.tenant_id
      from execution.campaign_events as event
     where event.at < least(p_before, now() - interval '1 hour')
$$;

COMMENT ON FUNCTION execution.tenants_with_old_history(p_before timestamp with time zone) IS 'Returns the tenants with events that prune_campaign_events may delete. Locks nothing; prune_campaign_events then deletes per tenant.';

CREATE FUNCTION execution.tenants_with_old_runs(p_before timestamp with time zone) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select
                     from execution.campaign_runs as run
                          left join execution.run_archives as archive
                                 on archive.tenant_id = run.tenant_id
                                and archive.run_id = run.id
                    where run.tenant_id = tenant.id
                      and run.created_at < p_before
                      and run.finished_at < p_before
                      and archive.removed_at is null)
$$;

COMMENT ON FUNCTION execution.tenants_with_old_runs(p_before timestamp with time zone) IS 'Returns the tenants with runs that ended before p_before and still have their jobs and items. Locks nothing.';

CREATE FUNCTION execution.tend_phase(p_tenant_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_phase record;
    v_next record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Choose a random one, so that a phase that always fails does not block the others.
    select phase.campaign_id, phase.id
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.due is not null
     order by random()
     limit 1;
    if not found then
        return false;
    end if;
    perform
       from execution.campaigns as campaign
      where campaign.tenant_id = p_tenant_id
        and campaign.id = v_phase.campaign_id
        for no key update skip locked;
    if not found then
        return false;
    end if;
    select phase.*
      into strict v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = v_phase.id
       for no key update;
    if v_phase.due is null then
        return true;
    end if;
    update execution.campaign_phases set due = null where tenant_id = p_tenant_id and id = v_phase.id;
    if v_phase.due = 'end' then
        if v_phase.status = 'in_progress' then
            perform execution.end_phase(p_tenant_id, v_phase.id, p_actor);
        end if;
        return true;
    end if;
    select phase.id, phase.phase, phase.status
      into v_next
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = v_phase.campaign_id
       and phase.position > v_phase.position
     order by phase.position
     limit 1
       for no key update;
    if not found or v_next.status <> 'not_started' then
        return true;
    end if;
    begin
        perform execution.start_phase(p_tenant_id, v_phase.campaign_id, v_next.id, gen_random_uuid(), 500, p_actor);
    exception
        -- Record an error of the phase. A database error is raised, and the caller retries.
        when invalid_parameter_value or no_data_found or check_violation then
            update execution.campaigns
               set not_advanced = left(v_next.phase || ': ' || sqlerrm, 2000)
             where tenant_id = p_tenant_id
               and id = v_phase.campaign_id;
            perform execution.audit(p_tenant_id, v_phase.campaign_id, v_next.id, null, null, null, p_actor,
                                    'phase.not_advanced', sqlerrm);
    end;
    return true;
end
$$;

COMMENT ON FUNCTION execution.tend_phase(p_tenant_id uuid, p_actor text) IS 'Processes one phase of a tenant that has something due: ends it, or starts the next phase of a campaign with auto_advance. Returns false if nothing is due or another transaction has locked the campaign. If the next phase cannot be started, the campaign records the reason in not_advanced.';

CREATE FUNCTION execution.try_new_secret(p_tenant_id uuid, p_account_id uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    update execution.account_states as state
       set circuit_open_until = v_now,
           circuit_openings = 0,
           probe_job_id = null,
           probe_until = null
     where state.tenant_id = p_tenant_id
       and state.account_id = p_account_id
       and state.circuit_open_until > v_now;
    if found then
        perform execution.wake_jobs_of_circuit(p_tenant_id, p_account_id);
    end if;
end
$$;

COMMENT ON FUNCTION execution.try_new_secret(p_tenant_id uuid, p_account_id uuid) IS 'Half opens the circuit of an account whose secret was changed: the next call is a probe.';

CREATE FUNCTION execution.unshelve_jobs(p_tenant_id uuid, p_run_id uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
declare
    v_due_at timestamptz;
begin
    select greatest(run.scheduled_for, now())
      into v_due_at
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_run_id;
    update execution.job_queue as job
       set run_after = v_due_at
     where job.tenant_id = p_tenant_id
       and job.run_id = p_run_id
       and job.status = 'queued'
       and job.run_after = 'infinity';
end
$$;

COMMENT ON FUNCTION execution.unshelve_jobs(p_tenant_id uuid, p_run_id uuid) IS 'Makes the shelved send jobs of a resumed run due again.';

CREATE FUNCTION execution.unsuppress_lead(p_tenant_id uuid, p_lead_id uuid, p_note text, p_actor text, OUT is_known boolean, OUT also_suppressed uuid[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_now constant timestamptz := now();
    v_lead record;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'the note must say why messages may be sent again' using errcode = 'invalid_parameter_value';
    end if;
    select lead.*
      into v_lead
      from execution.leads as lead
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id
       for no key update;
    is_known := found;
    also_suppressed := '{}';
    if not is_known then
        return;
    end if;
    if v_lead.erasing_since is not null then
        raise exception 'lead % is erased or waits for its erasure, and stays suppressed', p_lead_id
            using errcode = 'invalid_parameter_value', hint = 'Import the person again to make a new lead.';
    end if;
    also_suppressed := array(
        select other.id
          from execution.leads as other
         where other.tenant_id = p_tenant_id
           and other.workspace_id = v_lead.workspace_id
           and lower(other.email) = lower(v_lead.email)
           and other.suppressed_at is not null
           and other.id <> p_lead_id
         union
        select other.id
          from execution.leads as other
         where other.tenant_id = p_tenant_id
           and other.workspace_id = v_lead.workspace_id
           and other.phone = v_lead.phone
           and other.suppressed_at is not null
           and other.id <> p_lead_id
         order by 1);
    if v_lead.suppressed_at is null then
        return;
    end if;
    update execution.leads as lead
       set suppressed_at = null,
           suppression_reason = null,
           updated_at = v_now
     where lead.tenant_id = p_tenant_id
       and lead.id = p_lead_id;
    -- Otherwise the next import would suppress the lead again.
    delete from execution.suppressed_addresses as known
     where known.tenant_id = p_tenant_id
       and known.workspace_id = v_lead.workspace_id
       and known.hash = any (execution.address_hashes(p_tenant_id, v_lead.email, v_lead.phone, v_lead.external_id));
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'lead.unsuppressed', 'lead:' || p_lead_id, left(p_note, 2000));
end
$$;

COMMENT ON FUNCTION execution.unsuppress_lead(p_tenant_id uuid, p_lead_id uuid, p_note text, p_actor text, OUT is_known boolean, OUT also_suppressed uuid[]) IS 'Ends the suppression of a lead of the tenant, with a note for the audit log. Repeating the call changes nothing. also_suppressed has the other suppressed leads with its e-mail address or phone number, which still keep messages from it.';

CREATE FUNCTION execution.verify_launch(p_tenant_id uuid, p_run_id uuid) RETURNS TABLE(run_id uuid, run_status text, intended bigint, sent bigint, called bigint, posted bigint, failed bigint, skipped bigint, in_doubt bigint, missing bigint, run_is_terminal boolean, every_item_is_terminal boolean, duplicates_are_impossible boolean, launched boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from execution.campaign_runs as run where run.tenant_id = p_tenant_id and run.id = p_run_id) then
        raise exception 'there is no run %', p_run_id using errcode = 'no_data_found';
    end if;
    return query
        with archive as (
            -- The counts of a run whose items retention deletes.
            select archived.*
              from execution.run_archives as archived
             where archived.tenant_id = p_tenant_id
               and archived.run_id = p_run_id
        ), items as (
            select count(*) filter (where item.status = 'sent') as sent,
                   count(*) filter (where item.status = 'called') as called,
                   count(*) filter (where item.status = 'posted') as posted,
                   count(*) filter (where item.status = 'failed') as failed,
                   count(*) filter (where item.status = 'skipped') as skipped,
                   count(*) filter (where item.status = 'queued'
                                      and (item.reserved_by is not null or item.in_doubt_since is not null)) as in_doubt,
                   count(distinct item.recipient_id)
                       filter (where item.status <> 'queued' or item.reserved_by is not null or item.in_doubt_since is not null) as known
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.run_id = p_run_id
               and not exists (select from archive)
        ), guarded as (
            -- Duplicates are prevented by the unique key, the triggers that keep rows and keys unchanged, the trigger that refuses
            -- reservations on a restored copy, and the one that refuses jobs of an archived run.
            select count(*) = 7 and tenancy.sending_refusal() is null as holds
              from (select from pg_constraint as wall
                     where wall.conrelid = 'execution.channel_outbox'::regclass
                       and wall.conname = 'channel_outbox_one_row_per_key'
                       and pg_get_constraintdef(wall.oid) = 'UNIQUE (idempotency_key, tenant_id, workspace_id)'
                     union all
                    select from pg_trigger as wall
                     where (wall.tgrelid = 'execution.channel_outbox'::regclass
                            and wall.tgname in ('channel_outbox_ends_are_final', 'channel_outbox_reservations_are_facts',
                                                'channel_outbox_is_never_removed_from', 'channel_outbox_is_never_emptied',
                                                'channel_outbox_waits_for_adoption')
                            or wall.tgrelid = 'execution.job_queue'::regclass
                               and wall.tgname = 'job_queue_has_none_of_archived_runs')
                       and wall.tgenabled in ('O', 'A')) as walls
        ), counted as (
            select items.sent, items.called, items.posted, items.failed, items.skipped, items.in_doubt,
                   run.intended - items.known as missing
              from items, execution.campaign_runs as run
             where run.tenant_id = p_tenant_id
               and run.id = p_run_id
               and not exists (select from archive)
             union all
            select archive.sent, archive.called, archive.posted, archive.failed, archive.skipped, 0, archive.missing
              from archive
        )
        select run.id,
               run.status,
               run.intended::bigint,
               counted.sent, counted.called, counted.posted, counted.failed, counted.skipped, counted.in_doubt,
               counted.missing,
               run.status in ('completed', 'partial', 'failed'),
               counted.in_doubt = 0 and counted.missing = 0,
               guarded.holds,
               run.status in ('completed', 'partial', 'failed') and counted.in_doubt = 0 and counted.missing = 0
               and guarded.holds
          from execution.campaign_runs as run, counted, guarded
         where run.tenant_id = p_tenant_id
           and run.id = p_run_id;
end
$$;

COMMENT ON FUNCTION execution.verify_launch(p_tenant_id uuid, p_run_id uuid) IS 'The launch certificate of a run of the tenant: whether the run has ended, whether every intended item has ended, and whether a second call is impossible, with the counts that show it. On a restored copy it does not certify that a second call is impossible.';

CREATE FUNCTION execution.wake_jobs_of_circuit(p_tenant_id uuid, p_account_id uuid) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    -- Ordered by id, and without send jobs that a claim has locked.
    with waiting as (
        select job.tenant_id, job.id
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
         where job.tenant_id = p_tenant_id
           and job.status = 'queued'
           and job.waits_for = 'circuit'
           and job.run_after > v_now
           and run.provider_account_id = p_account_id
         order by job.id
           for no key update of job skip locked
    )
    update execution.job_queue as job
       set run_after = v_now
      from waiting
     where job.tenant_id = p_tenant_id
       and job.id = waiting.id;
end
$$;

COMMENT ON FUNCTION execution.wake_jobs_of_circuit(p_tenant_id uuid, p_account_id uuid) IS 'Makes the send jobs due that wait for the circuit of an account.';

CREATE FUNCTION jobs.acquire_run(p_tenant_id uuid, p_id uuid, p_function text, p_entity_hash text, p_input jsonb, p_force boolean, p_actor text) RETURNS TABLE(outcome text, run_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now   constant timestamptz := now();
    v_grain text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    select function.grain
      into v_grain
      from jobs.functions as function
     where function.tenant_id = p_tenant_id
       and function.name = p_function;
    if not found then
        return query select 'unknown_function', null::uuid;
        return;
    end if;
    select opened.outcome, opened.run_id
      into strict outcome, run_id
      from jobs.open_run(p_tenant_id, p_id, p_function, v_grain, v_now, p_entity_hash, p_input, null, p_force) as opened;
    if p_force and outcome = 'acquired' then
        perform jobs.audit(p_tenant_id, p_actor, 'run.forced', 'job_run:' || p_id,
                           jobs.lock_key(p_function, p_tenant_id, v_grain, v_now, p_entity_hash));
    end if;
    return next;
end
$$;

COMMENT ON FUNCTION jobs.acquire_run(p_tenant_id uuid, p_id uuid, p_function text, p_entity_hash text, p_input jsonb, p_force boolean, p_actor text) IS 'Invokes a function of a tenant, in the grain of the current database time. Returns the outcome of open_run, or unknown_function.';

CREATE FUNCTION jobs.are_dependencies_met(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$
    select not exists (
        select
          from unnest(p_depends_on) as wanted (name)
         -- Not `not exists`: as a join, it may read the completed runs of all functions of the tenant.
         where (select true
                  from jobs.job_runs as run
                 where run.tenant_id = p_tenant_id
                   and run.function_name = wanted.name
                   and run.status = 'completed'
                   and jobs.grain_overlaps(run.grain, run.grain_start, jobs.grain_start(p_grain, p_fire_at),
                                           jobs.grain_start(p_grain, p_fire_at) + jobs.grain_length(p_grain))
                 limit 1) is null)
$$;

COMMENT ON FUNCTION jobs.are_dependencies_met(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamp with time zone) IS 'Returns whether every function in p_depends_on has a completed run in a grain that overlaps the grain of the firing. Schedulers call it often, so it gives no reasons; unmet_dependencies does.';

CREATE FUNCTION jobs.audit(p_tenant_id uuid, p_actor text, p_action text, p_subject text, p_note text DEFAULT NULL::text) RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, p_action, p_subject, p_note)
$$;

COMMENT ON FUNCTION jobs.audit(p_tenant_id uuid, p_actor text, p_action text, p_subject text, p_note text) IS 'Adds a row to the audit log.';

CREATE FUNCTION jobs.can_run(p_kind text, p_target text, p_kinds text[], p_builtins text[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((p_kind IS NULL) OR ((p_kind = ANY (p_kinds)) AND ((p_kind <> 'builtin'::text) OR (p_target = ANY (p_builtins)))));

COMMENT ON FUNCTION jobs.can_run(p_kind text, p_target text, p_kinds text[], p_builtins text[]) IS 'Returns whether a runner with these kinds and Rust functions takes runs of a function. Every runner takes runs whose function was removed (p_kind is null), so that they end.';

CREATE FUNCTION jobs.cancel_run(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now    constant timestamptz := now();
    v_note   constant text := nullif(btrim(p_note), '');
    v_status text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    select run.status
      into v_status
      from jobs.job_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_id
       for update;
    if v_status is null or v_status in ('completed', 'cancelled') then
        return v_status;
    end if;
    update jobs.job_runs as run
       set status = 'cancelled',
           completed_at = coalesce(run.completed_at, v_now),
           error_message = coalesce(case when run.status = 'failed' then run.error_message end,
                                    concat_ws(': ', 'cancelled by ' || p_actor, v_note)),
           retry_at = null,
           locked_by = null,
           heartbeat_at = null
     where run.tenant_id = p_tenant_id
       and run.id = p_id;
    perform jobs.resolve_source(p_tenant_id, 'job_run', p_id, p_actor, concat_ws(': ', 'the run was cancelled', v_note));
    perform jobs.audit(p_tenant_id, p_actor, 'run.cancelled', 'job_run:' || p_id, v_note);
    return 'cancelled';
end
$$;

COMMENT ON FUNCTION jobs.cancel_run(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) IS 'Cancels a run and returns its status: cancelled, completed if the run had completed, null if it does not exist. A runner that holds the run cannot end it any more, and learns of the cancellation from its next heartbeat.';

CREATE FUNCTION jobs.claim_doubtful_notifications(p_tenant_id uuid, p_quiet interval, p_limit integer) RETURNS TABLE(id uuid, account_id uuid, recipient text, subject text, body text, claims integer, first_called_at timestamp with time zone, in_doubt_since timestamp with time zone, age_seconds double precision)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        with doubtful as materialized (
            select doubtful.id
              from jobs.alert_notifications as doubtful
             where doubtful.tenant_id = p_tenant_id
               and doubtful.status = 'queued'
               and doubtful.called_at < v_now - p_quiet
             order by doubtful.called_at
             limit p_limit
               for update skip locked
        )
        update jobs.alert_notifications as notification
           set claims = notification.claims + 1,
               -- The quiet time starts again: the lookup or repeated call of this claim must be over before the next
               -- claim.
               called_at = v_now,
               in_doubt_since = coalesce(notification.in_doubt_since, notification.called_at),
               updated_at = v_now
          from doubtful
         where notification.tenant_id = p_tenant_id
           and notification.id = doubtful.id
        returning notification.id, notification.account_id, notification.recipient, notification.subject, notification.body,
                  notification.claims, notification.first_called_at, notification.in_doubt_since,
                  extract(epoch from v_now - notification.first_called_at)::double precision;
end
$$;

COMMENT ON FUNCTION jobs.claim_doubtful_notifications(p_tenant_id uuid, p_quiet interval, p_limit integer) IS 'Claims notifications of a tenant whose call has no known result, once p_quiet has passed since the last call.';

CREATE FUNCTION jobs.claim_runs(p_tenant_id uuid, p_worker text, p_limit integer, p_kinds text[], p_builtins text[]) RETURNS TABLE(id uuid, tenant_id uuid, function_name text, lock_key text, input_params jsonb, retry_count integer, claims integer, scheduled_for timestamp with time zone, function_id uuid, kind text, target text, timeout_seconds integer, sealed_secret bytea)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_now          constant timestamptz := now();
    v_heartbeat_at timestamptz;
    v_ids          uuid[];
begin
    perform tenancy.limit_idle_time('15s');
    if coalesce(btrim(p_worker), '') = '' then
        raise exception 'p_worker must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    select array_agg(due.id)
      into v_ids
      from (select due.id
              from jobs.job_runs as due
              left join jobs.functions as function on function.tenant_id = due.tenant_id and function.name = due.function_name
             where ((due.status = 'running' and due.locked_by is null) or due.retry_at is not null)
               and due.tenant_id = p_tenant_id
               and coalesce(due.retry_at, due.started_at) <= v_now
               and jobs.can_run(function.kind, function.target, p_kinds, p_builtins)
             order by coalesce(due.retry_at, due.started_at)
             limit p_limit
               for update of due skip locked) as due;
    -- Not v_now: the transaction may have begun long before.
    v_heartbeat_at := clock_timestamp();
    return query
        with claimed as (
            update jobs.job_runs as run
               set status = 'running',
                   retry_count = run.retry_count + (run.status = 'failed')::integer,
                   retry_at = null,
                   started_at = v_now,
                   completed_at = null,
                   locked_by = p_worker,
                   heartbeat_at = v_heartbeat_at,
                   claims = run.claims + 1
              from unnest(v_ids) as due (id)
             where run.tenant_id = p_tenant_id
               and run.id = due.id
            returning run.*
        )
        select run.id, run.tenant_id, run.function_name, run.lock_key, run.input_params, run.retry_count, run.claims,
               run.scheduled_for, function.id, function.kind, function.target, function.timeout_seconds, function.sealed_secret
          from claimed as run
          left join jobs.functions as function on function.tenant_id = p_tenant_id and function.name = run.function_name;
end
$$;

COMMENT ON FUNCTION jobs.claim_runs(p_tenant_id uuid, p_worker text, p_limit integer, p_kinds text[], p_builtins text[]) IS 'Claims up to p_limit due runs of a tenant that no runner holds, longest due first. Claims only functions that the runner can run (p_kinds, p_builtins), and runs whose function was removed, so that they end.';

CREATE FUNCTION jobs.close_alerts(p_tenant_id uuid, p_ids uuid[]) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now    constant timestamptz := now();
    v_closed integer;
begin
    update jobs.alert_instances as alert
       set status = 'resolved',
           resolved_at = v_now,
           updated_at = v_now
     where alert.tenant_id = p_tenant_id
       and alert.id = any (p_ids)
       and alert.status <> 'resolved';
    get diagnostics v_closed = row_count;
    return v_closed;
end
$$;

COMMENT ON FUNCTION jobs.close_alerts(p_tenant_id uuid, p_ids uuid[]) IS 'Marks those of the alerts that are open as resolved, and returns their number.';

CREATE FUNCTION jobs.decide_card(p_tenant_id uuid, p_id uuid, p_status text, p_note text, p_actor text) RETURNS TABLE(decided boolean, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now    constant timestamptz := now();
    v_status text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    select card.status
      into v_status
      from jobs.decision_cards as card
     where card.tenant_id = p_tenant_id
       and card.id = p_id
       for update;
    if not found then
        return;
    end if;
    if v_status in ('RESOLVED', 'DISMISSED') then
        return query select v_status = p_status, v_status;
        return;
    end if;
    update jobs.decision_cards as card
       set status = p_status,
           note = coalesce(nullif(btrim(p_note), ''), card.note),
           decided_by = p_actor,
           updated_at = v_now
     where card.tenant_id = p_tenant_id
       and card.id = p_id;
    perform jobs.audit(p_tenant_id, p_actor, 'card.' || lower(p_status), 'card:' || p_id, nullif(btrim(p_note), ''));
    return query select true, p_status;
end
$$;

COMMENT ON FUNCTION jobs.decide_card(p_tenant_id uuid, p_id uuid, p_status text, p_note text, p_actor text) IS 'Records the decision of a person about a card. Returns no row if the card does not exist; a card that is resolved or dismissed keeps its status, which is returned.';

CREATE FUNCTION jobs.decide_firing(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone, p_run_id uuid) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now      constant timestamptz := now();
    v_schedule record;
    v_opened   record;
begin
    select schedule.function_name, schedule.input, schedule.entity_hash, schedule.depends_on,
           coalesce(schedule.grain, function.grain) as grain
      into strict v_schedule
      from jobs.schedules as schedule
      join jobs.functions as function on function.tenant_id = schedule.tenant_id and function.name = schedule.function_name
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_schedule_id;
    if not jobs.are_dependencies_met(p_tenant_id, v_schedule.depends_on, v_schedule.grain, p_fire_at) then
        -- One firing per grain waits, so that the number of waiting firings stays small.
        update jobs.schedule_firings as firing
           set outcome = 'skipped',
               reason = 'another firing of this grain waits already',
               decided_at = v_now
         where firing.tenant_id = p_tenant_id
           and firing.schedule_id = p_schedule_id
           and firing.fire_at = p_fire_at
           and exists (select
                         from jobs.schedule_firings as other
                        where other.tenant_id = p_tenant_id
                          and other.schedule_id = p_schedule_id
                          and other.fire_at >= jobs.grain_start(v_schedule.grain, p_fire_at)
                          and other.fire_at < p_fire_at
                          and other.outcome = 'waiting');
        return case when found then 'skipped' else 'waiting' end;
    end if;
    select *
      into strict v_opened
      from jobs.open_run(p_tenant_id, p_run_id, v_schedule.function_name, v_schedule.grain, p_fire_at, v_schedule.entity_hash,
                         v_schedule.input, p_schedule_id, false);
    update jobs.schedule_firings as firing
       set outcome = case v_opened.outcome when 'acquired' then 'started' else 'skipped' end,
           job_run_id = v_opened.run_id,
           reason = case v_opened.outcome
                        when 'running' then 'a run of this grain is running'
                        when 'retry_pending' then 'a run of this grain waits for its retry'
                        when 'completed' then 'completed before in this grain'
                    end,
           decided_at = v_now
     where firing.tenant_id = p_tenant_id
       and firing.schedule_id = p_schedule_id
       and firing.fire_at = p_fire_at;
    return case v_opened.outcome when 'acquired' then 'started' else 'skipped' end;
end
$$;

COMMENT ON FUNCTION jobs.decide_firing(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone, p_run_id uuid) IS 'Decides a waiting firing: starts a run, skips the firing because its grain has a run or another waiting firing, or lets it wait for its dependencies. Returns started, skipped or waiting. The caller has locked the firing.';

CREATE FUNCTION jobs.detect_alerts(p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision) RETURNS TABLE(raised integer, resolved integer, open integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_condition record;
    v_known     uuid[];
    v_ids       uuid[] := array[]::uuid[];
begin
    perform tenancy.require_tenant(p_tenant_id);
    select coalesce(array_agg(alert.id), '{}')
      into v_known
      from jobs.alert_instances as alert
     where alert.tenant_id = p_tenant_id
       and alert.alert_config_id in ('failed-jobs', 'long-running-jobs', 'retry-rate')
       and alert.status in ('active', 'open', 'triggered');
    for v_condition in select * from jobs.job_conditions(p_tenant_id, p_failed_max, p_running_max, p_retry_rate_max) loop
        v_ids := v_ids || jobs.raise_alert(p_tenant_id, v_condition.alert_config_id, v_condition.external_object_id,
                                           v_condition.title, v_condition.severity, v_condition.evidence);
    end loop;
    resolved := jobs.close_alerts(p_tenant_id, array(select known.id from unnest(v_known) as known (id) where known.id <> all (v_ids)));
    select (count(*) filter (where alert.id <> all (v_known)))::integer, count(*)::integer
      into raised, open
      from unnest(v_ids) as alert (id);
    return next;
end
$$;

COMMENT ON FUNCTION jobs.detect_alerts(p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision) IS 'Raises the alerts whose job_conditions hold and resolves the others, for a tenant. Returns the numbers of raised, resolved and open alerts.';

CREATE FUNCTION jobs.due_schedules(p_limit integer, p_per_tenant integer, p_except_tenant_ids uuid[], p_except_ids uuid[]) RETURNS TABLE(tenant_id uuid, id uuid, cron text, timezone text, misfire text, next_fire_at timestamp with time zone, version integer, now timestamp with time zone)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with oldest as materialized (
        select schedule.*
          from jobs.schedules as schedule
         where schedule.enabled
           and schedule.next_fire_at <= now()
           and (schedule.tenant_id, schedule.id) not in (select excepted.tenant_id, excepted.id
                                                           from unnest(p_except_tenant_ids, p_except_ids) as excepted (tenant_id, id))
         order by schedule.next_fire_at
         limit p_limit * 10
    )
    select due.tenant_id, due.id, due.cron, due.timezone, due.misfire, due.next_fire_at, due.version, now()
      from (select oldest.*, row_number() over (partition by oldest.tenant_id order by oldest.next_fire_at) as place
              from oldest) as due
     where due.place <= p_per_tenant
     order by due.place, due.next_fire_at
     limit p_limit
$$;

COMMENT ON FUNCTION jobs.due_schedules(p_limit integer, p_per_tenant integer, p_except_tenant_ids uuid[], p_except_ids uuid[]) IS 'Returns up to p_limit schedules that are due by the database clock, and the time of that clock. Returns at most p_per_tenant schedules of one tenant, and none of the pairs in p_except_tenant_ids and p_except_ids, which the scheduler cannot fire. Locks nothing; fire_schedule then fires one schedule of one tenant.';

CREATE FUNCTION jobs.end_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text, p_results jsonb[], p_errors text[], p_are_retryable boolean[]) RETURNS TABLE(tenant_id uuid, id uuid, status text, retry_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    v_now  constant timestamptz := now();
    v_held record;
begin
    perform tenancy.limit_idle_time('15s');
    -- Lock in the order of keys, so that two runners cannot deadlock.
    perform
       from unnest(p_tenant_ids, p_ids) as given (tenant_id, id)
       join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
      order by given.tenant_id, given.id
        for update of run;
    -- locked_by implies status 'running'. A predicate on status would make the planner search the index of running
    -- runs.
    for v_held in
        select run.tenant_id, run.id, given.error, given.is_retryable
          from unnest(p_tenant_ids, p_ids, p_claims, p_errors, p_are_retryable) as given (tenant_id, id, claim, error, is_retryable)
          join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
         where given.error is not null
           and run.locked_by = p_worker
           and run.claims = given.claim
    loop
        return query
            select v_held.tenant_id, v_held.id, 'failed',
                   jobs.note_failure(v_held.tenant_id, v_held.id, v_held.error, v_held.is_retryable);
    end loop;

    for v_held in
        update jobs.job_runs as run
           set status = 'completed',
               completed_at = v_now,
               result = given.result,
               error_message = null,
               locked_by = null,
               heartbeat_at = null
          from unnest(p_tenant_ids, p_ids, p_claims, p_results, p_errors) as given (tenant_id, id, claim, result, error)
         where run.tenant_id = given.tenant_id
           and run.id = given.id
           and given.error is null
           and run.locked_by = p_worker
           and run.claims = given.claim
        returning run.tenant_id, run.id, run.retry_count
    loop
        -- Only a run that was retried can have a dead letter.
        if v_held.retry_count > 0 then
            perform jobs.resolve_source(v_held.tenant_id, 'job_run', v_held.id, 'postrider', 'a later attempt completed the run');
        end if;
        return query select v_held.tenant_id, v_held.id, 'completed', null::timestamptz;
    end loop;
end
$$;

COMMENT ON FUNCTION jobs.end_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text, p_results jsonb[], p_errors text[], p_are_retryable boolean[]) IS 'Records the results of runs, of any number of tenants, that the runner holds under these claims: completed where the error is null, otherwise failed. A run that is missing from the answer is no longer held under its claim and did not change.';

CREATE FUNCTION jobs.entity_hash(p_entities json) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if json_typeof(p_entities) <> 'object' then
        raise exception 'the entities must be a JSON object, such as {"rule_id": "r123"}, and not of type %', json_typeof(p_entities)
            using errcode = 'invalid_parameter_value';
    end if;
    return (
        select left(encode(sha256(convert_to('[' || coalesce(string_agg(
                   '[' || member.key || ',' || jobs.json_text(member.value, 2) || ']', ','
                   order by jobs.json_code_units(member.key) collate "C"), '') || ']', 'UTF8')), 'hex'), 12)
          from jobs.json_members(jobs.json_shielded(p_entities)) as member
    );
end
$$;

COMMENT ON FUNCTION jobs.entity_hash(p_entities json) IS 'Returns the entity hash of a JSON object of at most 64 levels. The lock key of a run about these entities contains it.';

CREATE FUNCTION jobs.fire_schedule(p_tenant_id uuid, p_id uuid, p_due timestamp with time zone, p_version integer, p_fire_at timestamp with time zone[], p_run_ids uuid[], p_skipped_at timestamp with time zone, p_skipped_reason text, p_next_fire_at timestamp with time zone) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now     constant timestamptz := now();
    v_started integer := 0;
begin
    perform tenancy.limit_idle_time('15s');
    -- A scheduler that waited for a lock here would delay all other schedules.
    perform
       from jobs.schedules as schedule
      where schedule.tenant_id = p_tenant_id
        and schedule.id = p_id
        for update skip locked;
    if not found then
        return null;
    end if;
    update jobs.schedules as schedule
       set next_fire_at = p_next_fire_at,
           last_fire_at = coalesce(p_fire_at[cardinality(p_fire_at)], schedule.last_fire_at)
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_id
       and schedule.enabled
       and schedule.next_fire_at = p_due
       and schedule.version = p_version
       -- No scheduler fires early, whatever its own clock says.
       and p_due <= v_now
       and v_now >= all (p_fire_at);
    if not found then
        return null;
    end if;
    if p_skipped_at is not null then
        insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, reason, decided_at)
        values (p_tenant_id, p_id, p_skipped_at, 'skipped', p_skipped_reason, v_now)
        on conflict do nothing;
    end if;
    for v_place in 1 .. cardinality(p_fire_at) loop
        insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome)
        values (p_tenant_id, p_id, p_fire_at[v_place], 'waiting')
        on conflict do nothing;
        if found and jobs.decide_firing(p_tenant_id, p_id, p_fire_at[v_place], p_run_ids[v_place]) = 'started' then
            v_started := v_started + 1;
        end if;
    end loop;
    return v_started;
end
$$;

COMMENT ON FUNCTION jobs.fire_schedule(p_tenant_id uuid, p_id uuid, p_due timestamp with time zone, p_version integer, p_fire_at timestamp with time zone[], p_run_ids uuid[], p_skipped_at timestamp with time zone, p_skipped_reason text, p_next_fire_at timestamp with time zone) IS 'Fires a schedule once for each time in p_fire_at, advances it to p_next_fire_at and returns the number of started runs. Returns null and changes nothing if another scheduler was faster or the schedule no longer matches p_due and p_version. p_skipped_at is the last of the times that the scheduler left out.';

CREATE FUNCTION jobs.fire_waiting(p_tenant_id uuid, p_limit integer, p_patience interval) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now     constant timestamptz := now();
    v_firing  record;
    v_outcome text;
    v_reason  text;
    v_started integer := 0;
begin
    perform tenancy.limit_idle_time('15s');
    for v_firing in
        with looked as materialized (
            select firing.schedule_id, firing.fire_at, firing.created_at < v_now - p_patience as is_late
              from jobs.schedule_firings as firing
             where firing.tenant_id = p_tenant_id
               and firing.outcome = 'waiting'
             order by firing.looked_at
             limit p_limit
               for update skip locked
        )
        select looked.schedule_id, looked.fire_at, looked.is_late, schedule.enabled
          from looked
          join jobs.schedules as schedule on schedule.tenant_id = p_tenant_id and schedule.id = looked.schedule_id
         -- All schedulers use this order, so that two of them cannot deadlock on lock keys.
         order by schedule.function_name, looked.fire_at, schedule.id
    loop
        v_reason := case
                        when v_firing.is_late then 'a function it depends on did not complete in time'
                        when not v_firing.enabled then 'the schedule was disabled while it waited'
                    end;
        if v_reason is not null then
            update jobs.schedule_firings as firing
               set outcome = 'skipped',
                   reason = v_reason,
                   decided_at = v_now
             where firing.tenant_id = p_tenant_id
               and firing.schedule_id = v_firing.schedule_id
               and firing.fire_at = v_firing.fire_at;
            continue;
        end if;
        v_outcome := jobs.decide_firing(p_tenant_id, v_firing.schedule_id, v_firing.fire_at, jobs.new_id());
        if v_outcome = 'started' then
            v_started := v_started + 1;
        elsif v_outcome = 'waiting' then
            update jobs.schedule_firings as firing
               set looked_at = v_now
             where firing.tenant_id = p_tenant_id
               and firing.schedule_id = v_firing.schedule_id
               and firing.fire_at = v_firing.fire_at;
        end if;
    end loop;
    return v_started;
end
$$;

COMMENT ON FUNCTION jobs.fire_waiting(p_tenant_id uuid, p_limit integer, p_patience interval) IS 'Checks up to p_limit waiting firings of a tenant, least recently checked first, and returns the number of started runs. Skips firings that are older than p_patience or whose schedule was disabled.';

CREATE FUNCTION jobs.generate_decision_cards(p_tenant_id uuid) RETURNS TABLE(opened integer, closed integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into jobs.decision_cards (tenant_id, alert_instance_id, metric_code, period_start, title, recommendation, evidence)
    select alert.tenant_id, alert.id, alert.alert_config_id, (alert.created_at at time zone 'UTC')::date, alert.title,
           jobs.recommendation(alert.alert_config_id), alert.evidence
      from jobs.alert_instances as alert
     where alert.tenant_id = p_tenant_id
       and alert.status in ('active', 'open', 'triggered')
       -- A dismissed card counts too: a person is asked once per alert.
       and not exists (select from jobs.decision_cards as card
                        where card.tenant_id = alert.tenant_id and card.alert_instance_id = alert.id)
    on conflict do nothing;
    get diagnostics opened = row_count;
    update jobs.decision_cards as card
       set status = 'RESOLVED',
           decided_by = 'postrider',
           note = 'the alert resolved itself',
           updated_at = v_now
      from jobs.alert_instances as alert
     where card.tenant_id = p_tenant_id
       and card.status in ('OPEN', 'IN_PROGRESS')
       and alert.tenant_id = card.tenant_id
       and alert.id = card.alert_instance_id
       and alert.status = 'resolved';
    get diagnostics closed = row_count;
    return next;
end
$$;

COMMENT ON FUNCTION jobs.generate_decision_cards(p_tenant_id uuid) IS 'Creates a card for each open alert that has none and resolves the cards of resolved alerts, for a tenant. Returns the numbers of opened and closed cards.';

CREATE FUNCTION jobs.grain_length(p_grain text) RETURNS interval
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE p_grain WHEN 'day'::text THEN '24:00:00'::interval WHEN 'hour'::text THEN '01:00:00'::interval WHEN '5min'::text THEN '00:05:00'::interval ELSE NULL::interval END;

COMMENT ON FUNCTION jobs.grain_length(p_grain text) IS 'Returns the length of a grain. A day is 24 hours, because the length of a calendar day depends on the time zone.';

CREATE FUNCTION jobs.grain_start(p_grain text, p_at timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN date_bin(jobs.grain_length(p_grain), p_at, '2000-01-01 00:00:00+00'::timestamp with time zone);

COMMENT ON FUNCTION jobs.grain_start(p_grain text, p_at timestamp with time zone) IS 'Returns the start of the grain that contains p_at, in UTC.';

CREATE FUNCTION jobs.grain_label(p_grain text, p_at timestamp with time zone) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN to_char((jobs.grain_start(p_grain, p_at) AT TIME ZONE 'UTC'::text), CASE p_grain WHEN 'day'::text THEN 'YYYY-MM-DD'::text WHEN 'hour'::text THEN 'YYYY-MM-DD"T"HH24'::text ELSE 'YYYY-MM-DD"T"HH24:MI'::text END);

COMMENT ON FUNCTION jobs.grain_label(p_grain text, p_at timestamp with time zone) IS 'Returns the name of the grain that contains p_at: 2026-02-06, 2026-02-06T14 or 2026-02-06T14:05.';

CREATE FUNCTION jobs.grain_overlaps(p_grain text, p_grain_start timestamp with time zone, p_since timestamp with time zone, p_until timestamp with time zone) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((p_grain_start > (p_since - '24:00:00'::interval)) AND (p_grain_start < p_until) AND ((p_grain_start + jobs.grain_length(p_grain)) > p_since));

COMMENT ON FUNCTION jobs.grain_overlaps(p_grain text, p_grain_start timestamp with time zone, p_since timestamp with time zone, p_until timestamp with time zone) IS 'Returns whether the grain that starts at p_grain_start overlaps the time from p_since to p_until.';

CREATE FUNCTION jobs.heartbeat_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text) RETURNS TABLE(tenant_id uuid, id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    v_now constant timestamptz := clock_timestamp();
begin
    perform tenancy.limit_idle_time('15s');
    -- locked_by implies status 'running'. A predicate on status would make the planner search the index of running
    -- runs.
    return query
        with held as materialized (
            select run.tenant_id, run.id
              from unnest(p_tenant_ids, p_ids, p_claims) as given (tenant_id, id, claim)
              join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
             where run.claims = given.claim
               and run.locked_by = p_worker
        ), free as materialized (
            select run.tenant_id, run.id
              from held
              join jobs.job_runs as run on run.tenant_id = held.tenant_id and run.id = held.id
             where run.locked_by = p_worker
               for update of run skip locked
        ), beaten as (
            update jobs.job_runs as run
               set heartbeat_at = v_now
              from free
             where run.tenant_id = free.tenant_id
               and run.id = free.id
        )
        select held.tenant_id, held.id from held;
end
$$;

COMMENT ON FUNCTION jobs.heartbeat_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text) IS 'Records a heartbeat for the runs, of any number of tenants, that the runner holds under these claims, and returns those that it still holds. A row that another transaction has locked keeps its old heartbeat, so that one run cannot delay the others.';

CREATE FUNCTION jobs.job_conditions(p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision) RETURNS TABLE(alert_config_id text, external_object_id text, title text, severity text, evidence jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with recent as materialized (
        select run.function_name, run.status, run.retry_count
          from jobs.job_runs as run
         where run.tenant_id = p_tenant_id
           and run.created_at > now() - interval '24 hours'
    ), counted as (
        select count(*) as total,
               count(*) filter (where recent.status = 'failed') as failed,
               count(*) filter (where recent.retry_count > 0) as retried
          from recent
    )
    select 'failed-jobs', null::text,
           format('%s jobs failed in the last 24 hours', counted.failed),
           'critical',
           jsonb_build_object('failed', counted.failed, 'threshold', p_failed_max, 'by_function',
                              (select jsonb_object_agg(worst.function_name, worst.failed)
                                 from (select recent.function_name, count(*) as failed
                                         from recent
                                        where recent.status = 'failed'
                                        group by recent.function_name
                                        order by count(*) desc, recent.function_name
                                        limit 20) as worst))
      from counted
     where counted.failed > p_failed_max
    union all
    select 'long-running-jobs', run.id::text,
           format('%s has been running since %s', run.function_name,
                  to_char(run.started_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')),
           'warning',
           jsonb_build_object('job_id', run.id, 'function_name', run.function_name, 'lock_key', run.lock_key,
                              'started_at', run.started_at, 'threshold_minutes', extract(epoch from p_running_max) / 60)
      from jobs.job_runs as run
     where run.tenant_id = p_tenant_id
       and run.status = 'running'
       and run.started_at < now() - p_running_max
    union all
    select 'retry-rate', null::text,
           format('%s %% of the jobs of the last 24 hours were retried', round(100.0 * counted.retried / counted.total, 1)),
           'warning',
           jsonb_build_object('retried', counted.retried, 'total', counted.total, 'threshold', p_retry_rate_max)
      from counted
     where counted.total > 0
       and counted.retried > p_retry_rate_max * counted.total
$$;

COMMENT ON FUNCTION jobs.job_conditions(p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision) IS 'Returns the alert conditions that hold now for job runs of a tenant: too many failures in 24 hours, runs that take too long, and too high a share of retried runs.';

CREATE FUNCTION jobs.json_code_units(p_string text) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    BEGIN ATOMIC
 SELECT COALESCE(string_agg(
         CASE
             WHEN (length(unit.match[1]) = 6) THEN "right"(unit.match[1], 4)
             WHEN (length(unit.match[1]) = 2) THEN lpad(to_hex(ascii(translate("right"(unit.match[1], 1), 'btnfr'::text, ((((chr(8) || chr(9)) || chr(10)) || chr(12)) || chr(13))))), 4, '0'::text)
             WHEN (ascii(unit.match[1]) < 65536) THEN lpad(to_hex(ascii(unit.match[1])), 4, '0'::text)
             ELSE (to_hex((55296 + ((ascii(unit.match[1]) - 65536) / 1024))) || to_hex((56320 + (ascii(unit.match[1]) % 1024))))
         END, ''::text ORDER BY unit.place), ''::text) AS "coalesce"
    FROM regexp_matches(substr(json_code_units.p_string, 2, (length(json_code_units.p_string) - 2)), '\\u....|\\.|.'::text, 'g'::text) WITH ORDINALITY unit(match, place);
END;

COMMENT ON FUNCTION jobs.json_code_units(p_string text) IS 'Returns the UTF-16 code units, in hex, of a string that jobs.json_string wrote. JavaScript sorts strings by them.';

CREATE FUNCTION jobs.json_digits(p_number text, OUT digits text, OUT point bigint) RETURNS record
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_decimal text := split_part(lower(p_number), 'e', 1);
    v_exponent text := split_part(lower(p_number), 'e', 2);
begin
    digits := ltrim(replace(v_decimal, '.', ''), '0');
    -- No number has enough digits to compensate for an exponent of more than twelve digits.
    if length(ltrim(v_exponent, '+-0')) > 12 then
        v_exponent := left(v_exponent, 1) || '1000000000000';
    end if;
    point := length(digits) - length(split_part(v_decimal, '.', 2)) + coalesce(nullif(v_exponent, ''), '0')::bigint;
    digits := rtrim(digits, '0');
end
$$;

COMMENT ON FUNCTION jobs.json_digits(p_number text, OUT digits text, OUT point bigint) IS 'Splits a positive decimal number into its digits, without zeros at either end, and its decimal point: the value is 0.digits × 10^point.';

CREATE FUNCTION jobs.json_string(p_escaped text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if strpos(p_escaped, E'\\') = 0 then
        return '"' || p_escaped || '"';
    end if;
    -- Each piece but the first begins with an escape. No escape contains a backslash, because the value is shielded.
    return (
        select '"' || string_agg(
                   case
                       when piece.place = 1 then piece.text
                       when piece.code is null then case when piece.text like '/%' then '' else E'\\' end || piece.text
                       -- High surrogates are 55296 to 56319, low ones 56320 to 57343. The low one writes the
                       -- character.
                       when piece.is_high and piece.next_is_low then ''
                       when piece.code between 56320 and 57343 and piece.high is not null
                           then chr(65536 + (piece.high - 55296) * 1024 + piece.code - 56320) || substr(piece.text, 6)
                       when piece.code = 34 then E'\\"' || substr(piece.text, 6)
                       when piece.code = 92 then E'\\\\' || substr(piece.text, 6)
                       when piece.code in (8, 9, 10, 12, 13)
                           then E'\\' || substr('btn-fr', piece.code - 7, 1) || substr(piece.text, 6)
                       when piece.code < 32 or piece.code between 55296 and 57343
                           then E'\\' || lower(left(piece.text, 5)) || substr(piece.text, 6)
                       else chr(piece.code) || substr(piece.text, 6)
                   end, '' order by piece.place) || '"'
          from (select coded.*,
                       lag(case when coded.is_high then coded.code end) over places as high,
                       lead(coded.code between 56320 and 57343) over places as next_is_low
                  from (select split.*,
                               split.code between 55296 and 56319 and length(split.text) = 5 as is_high
                          from (select given.text,
                                       given.place,
                                       case when given.place > 1 and given.text like 'u%'
                                            then ('x' || substr(given.text, 2, 4))::bit(16)::integer
                                       end as code
                                  from unnest(string_to_array(p_escaped, E'\\')) with ordinality as given (text, place)) as split) as coded
                window places as (order by coded.place)) as piece
    );
end
$$;

COMMENT ON FUNCTION jobs.json_string(p_escaped text) IS 'Writes a string as JSON.stringify does. The argument is the text between the quotes of a JSON string, with its escapes.';

CREATE FUNCTION jobs.json_members(p_shielded json) RETURNS TABLE(key text, value json, place bigint)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    BEGIN ATOMIC
 SELECT jobs.json_string(member.key) AS json_string,
     (array_agg(member.value ORDER BY member.place DESC))[1] AS array_agg,
     min(member.place) AS min
    FROM json_each(json_members.p_shielded) WITH ORDINALITY member(key, value, place)
   GROUP BY (jobs.json_string(member.key));
END;

COMMENT ON FUNCTION jobs.json_members(p_shielded json) IS 'Returns the members of a shielded object as JavaScript keeps them: a repeated key keeps its first place and its last value.';

CREATE FUNCTION jobs.json_number(p_number text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET extra_float_digits TO '1'
    AS $$
declare
    v_is_negative boolean := p_number like '-%';
    v_digits text;
    v_point bigint;
    v_double double precision;
    v_shorter bigint;
begin
    -- Integers of at most 15 characters stay as they are, except that zero has no sign.
    if length(p_number) < 16 and ltrim(p_number, '-0123456789') = '' then
        return case p_number when '-0' then '0' else p_number end;
    end if;
    select * into v_digits, v_point from jobs.json_digits(ltrim(p_number, '-'));
    if v_digits = '' or v_point < -323 then
        return '0';
    elsif v_point > 309 then
        return 'null';
    end if;
    -- No double, and no midpoint between two, has that many digits. Of the remaining digits only their presence
    -- matters.
    if length(v_digits) > 800 then
        v_digits := left(v_digits, 800) || '1';
    end if;
    -- A number that is too small becomes 0. A number that is too large becomes Infinity, which JSON.stringify writes
    -- as null. The cast to double precision would reject both.
    if v_point = -323 and (v_digits || 'e' || v_point - length(v_digits))::numeric * (2::numeric ^ 1075) <= 1 then
        return '0';
    elsif v_point = 309 and (v_digits || 'e' || v_point - length(v_digits))::numeric >= 2::numeric ^ 1024 - 2::numeric ^ 970 then
        return 'null';
    end if;
    v_double := (v_digits || 'e' || v_point - length(v_digits))::double precision;
    select * into v_digits, v_point from jobs.json_digits(v_double::text);
    -- Postgres never writes the midpoint between two doubles, although it reads it as this double. JavaScript does
    -- where that is shorter (1e23). Midpoints far from 1 have more digits than that.
    if v_point between -30 and 60 and length(v_digits) > 1 then
        foreach v_shorter in array array[left(v_digits, -1)::bigint, left(v_digits, -1)::bigint + 1]
        loop
            if (v_shorter || 'e' || v_point - length(v_digits) + 1)::double precision = v_double then
                select * into v_digits, v_point from jobs.json_digits(v_shorter || 'e' || v_point - length(v_digits) + 1);
                exit;
            end if;
        end loop;
    end if;
    return case when v_is_negative then '-' else '' end
        || case
               when v_point between length(v_digits) and 21 then rpad(v_digits, v_point::integer, '0')
               when v_point between 1 and 21 then left(v_digits, v_point::integer) || '.' || substr(v_digits, v_point::integer + 1)
               when v_point between -5 and 0 then '0.' || repeat('0', -v_point::integer) || v_digits
               else left(v_digits, 1)
                 || case when length(v_digits) > 1 then '.' || substr(v_digits, 2) else '' end
                 || 'e' || case when v_point > 0 then '+' else '-' end || abs(v_point - 1)
           end;
end
$$;

COMMENT ON FUNCTION jobs.json_number(p_number text) IS 'Writes a number as JSON.stringify does: the nearest double, with the fewest digits that identify it.';

CREATE FUNCTION jobs.json_shielded(p_value json) RETURNS json
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (replace(replace(replace((p_value)::text, '\\'::text, '\u005c'::text), '\"'::text, '\u0022'::text), '\'::text, '\\'::text))::json;

COMMENT ON FUNCTION jobs.json_shielded(p_value json) IS 'Escapes every escape in the strings of a JSON value once more. Postgres JSON functions then undo only the added escapes, so escapes that text cannot hold (\u0000, single surrogates) survive.';

CREATE FUNCTION jobs.json_text(p_shielded json, p_depth integer) RETURNS text
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    v_type text := json_typeof(p_shielded);
begin
    if v_type = 'string' then
        return jobs.json_string(p_shielded #>> '{}');
    elsif v_type = 'number' then
        return jobs.json_number(p_shielded #>> '{}');
    elsif v_type not in ('object', 'array') then
        return btrim(p_shielded::text, E' \t\n\r');
    elsif p_depth > 64 then
        raise exception 'the value is nested deeper than 64 levels; name it by fewer' using errcode = 'invalid_parameter_value';
    elsif v_type = 'array' then
        return (
            select '[' || coalesce(string_agg(jobs.json_text(element.value, p_depth + 1), ',' order by element.place), '') || ']'
              from json_array_elements(p_shielded) with ordinality as element (value, place)
        );
    end if;
    -- Keys that are array indexes come first, in numeric order.
    return (
        select '{' || coalesce(string_agg(member.key || ':' || jobs.json_text(member.value, p_depth + 1), ','
                                          order by case when member.number < 4294967295 then member.number end, member.place), '') || '}'
          from (select found.*,
                       case when found.key ~ '^"(0|[1-9][0-9]{0,9})"$' then btrim(found.key, '"')::bigint end as number
                  from jobs.json_members(p_shielded) as found) as member
    );
end
$_$;

COMMENT ON FUNCTION jobs.json_text(p_shielded json, p_depth integer) IS 'Writes a shielded value as JSON.stringify does. p_depth is the depth of the value; the outermost value has depth 1.';

CREATE FUNCTION jobs.lock_key(p_function text, p_tenant_id uuid, p_grain text, p_at timestamp with time zone, p_entity_hash text DEFAULT NULL::text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN concat_ws(':'::text, p_function, p_tenant_id, jobs.grain_label(p_grain, p_at), p_entity_hash);

COMMENT ON FUNCTION jobs.lock_key(p_function text, p_tenant_id uuid, p_grain text, p_at timestamp with time zone, p_entity_hash text) IS 'Returns the lock key of a function for the grain that contains p_at, with the entity hash where one is passed.';

CREATE FUNCTION jobs.measure_jobs() RETURNS TABLE(waiting bigint, running bigint, retry_pending bigint, failed_day bigint, retried_day bigint, total_day bigint, long_running bigint, oldest_heartbeat_seconds double precision, overdue_seconds double precision, waiting_firings bigint, open_errors bigint, open_alerts bigint, doubtful_notifications bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select (select count(*) from jobs.job_runs where status = 'running' and locked_by is null),
           (select count(*) from jobs.job_runs where status = 'running' and locked_by is not null),
           (select count(*) from jobs.job_runs where retry_at is not null),
           recent.failed, recent.retried, recent.total,
           (select count(*) from jobs.job_runs where status = 'running' and started_at < now() - interval '30 minutes'),
           coalesce((select extract(epoch from now() - min(heartbeat_at)) from jobs.job_runs where heartbeat_at is not null), 0)::double precision,
           coalesce((select extract(epoch from now() - min(next_fire_at)) from jobs.schedules
                      where enabled and next_fire_at <= now()), 0)::double precision,
           (select count(*) from jobs.schedule_firings where outcome = 'waiting'),
           (select count(*) from jobs.sync_errors where not is_resolved),
           (select count(*) from jobs.alert_instances where status in ('active', 'open', 'triggered')),
           (select count(*) from jobs.alert_notifications where status = 'queued' and in_doubt_since is not null)
      from (select count(*) filter (where run.status = 'failed') as failed,
                   count(*) filter (where run.retry_count > 0) as retried,
                   count(*) as total
              from tenancy.tenants as tenant
              join jobs.job_runs as run on run.tenant_id = tenant.id
             where run.created_at > now() - interval '24 hours') as recent
$$;

COMMENT ON FUNCTION jobs.measure_jobs() IS 'Returns counts and ages of job runs, schedules, firings, dead letters, alerts and notifications of all tenants, for the metrics. Locks nothing.';

CREATE FUNCTION jobs.new_id() RETURNS uuid
    LANGUAGE sql PARALLEL SAFE
    RETURN (encode(set_bit(set_bit(OVERLAY(uuid_send(gen_random_uuid()) PLACING SUBSTRING(int8send((floor((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric)))::bigint) FROM 3) FROM 1 FOR 6), (52)::bigint, 1), (53)::bigint, 1), 'hex'::text))::uuid;

COMMENT ON FUNCTION jobs.new_id() IS 'Returns a new UUIDv7. Ids sort by creation time, like the ids that the Rust code makes.';

CREATE FUNCTION jobs.note_failure(p_tenant_id uuid, p_id uuid, p_error text, p_is_retryable boolean) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now      constant timestamptz := now();
    v_run      jobs.job_runs;
    v_policy   record;
    v_retry_at timestamptz;
begin
    select * into strict v_run from jobs.job_runs as run where run.tenant_id = p_tenant_id and run.id = p_id;
    select coalesce(max(function.max_retries), 3) as max_retries,
           coalesce(max(function.initial_delay_ms), 1000) as initial_delay_ms,
           coalesce(max(function.backoff_multiplier), 5) as backoff_multiplier,
           coalesce(max(function.max_delay_ms), 30000) as max_delay_ms
      into strict v_policy
      from jobs.functions as function
     where function.tenant_id = p_tenant_id
       and function.name = v_run.function_name;
    if p_is_retryable and v_run.retry_count < v_policy.max_retries then
        v_retry_at := v_now + interval '1 millisecond'
            * least(v_policy.initial_delay_ms * power(v_policy.backoff_multiplier, least(v_run.retry_count, 20)), v_policy.max_delay_ms);
    end if;
    update jobs.job_runs as run
       set status = 'failed',
           completed_at = v_now,
           error_message = p_error,
           retry_at = v_retry_at,
           locked_by = null,
           heartbeat_at = null
     where run.tenant_id = p_tenant_id
       and run.id = p_id;
    if v_retry_at is null then
        insert into jobs.sync_errors as known
            (tenant_id, error_type, error_code, error_message, error_details, source_entity_type, source_entity_id)
        values (p_tenant_id, 'job_failure',
                case when p_is_retryable then 'MAX_RETRIES_EXCEEDED' else 'EXECUTION_ERROR' end,
                p_error,
                jsonb_build_object('function_name', v_run.function_name,
                                   'lock_key', v_run.lock_key,
                                   'input_params', v_run.input_params,
                                   'retry_count', v_run.retry_count,
                                   'last_attempt_at', to_char(v_now at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')),
                'job_run', v_run.id)
        on conflict (tenant_id, source_entity_type, source_entity_id) where not is_resolved do update
           set error_code = excluded.error_code,
               error_message = excluded.error_message,
               error_details = excluded.error_details,
               updated_at = v_now;
    end if;
    return v_retry_at;
end
$$;

COMMENT ON FUNCTION jobs.note_failure(p_tenant_id uuid, p_id uuid, p_error text, p_is_retryable boolean) IS 'Records a failed attempt: sets retry_at by the retry policy of the function, or writes a dead letter. Returns retry_at, which is null when the run failed for good. The caller has locked the run.';

CREATE FUNCTION jobs.open_run(p_tenant_id uuid, p_id uuid, p_function text, p_grain text, p_at timestamp with time zone, p_entity_hash text, p_input jsonb, p_schedule_id uuid, p_force boolean) RETURNS TABLE(outcome text, run_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_key       constant text := jobs.lock_key(p_function, p_tenant_id, p_grain, p_at, p_entity_hash);
    v_is_forced boolean := false;
begin
    for v_try in 1 .. 100 loop
        insert into jobs.job_runs (id, tenant_id, function_name, lock_key, input_params, schedule_id, scheduled_for, grain, grain_start, is_forced)
        values (p_id, p_tenant_id, p_function, v_key, p_input, p_schedule_id, case when p_schedule_id is not null then p_at end,
                p_grain, jobs.grain_start(p_grain, p_at), v_is_forced)
        on conflict do nothing;
        if found then
            outcome := 'acquired';
            run_id := p_id;
            return next;
            return;
        end if;
        select other.outcome, other.run_id
          into outcome, run_id
          from jobs.run_with_lock_key(p_tenant_id, v_key) as other;
        if outcome in ('running', 'retry_pending') or (outcome = 'completed' and not p_force) then
            return next;
            return;
        end if;
        -- Either a completed run has the key and the caller forces a new one, or the run that had the key has just
        -- ended.
        v_is_forced := coalesce(outcome = 'completed', false);
    end loop;
    raise exception 'the lock key % passes from run to run too often; try again', v_key using errcode = 'lock_not_available';
end
$$;

COMMENT ON FUNCTION jobs.open_run(p_tenant_id uuid, p_id uuid, p_function text, p_grain text, p_at timestamp with time zone, p_entity_hash text, p_input jsonb, p_schedule_id uuid, p_force boolean) IS 'Inserts a run under its lock key, or returns the run that has the key: acquired, running, retry_pending or completed. A caller that loses waits for the commit of the winner. With p_force a completed run does not count; an active one does.';

CREATE FUNCTION jobs.plan_notifications(p_tenant_id uuid, p_account_ids uuid[], p_recipients text[]) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_planned integer;
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into jobs.alert_notifications (tenant_id, alert_instance_id, account_id, recipient, about, subject, body)
    select p_tenant_id, alert.id, target.account_id, target.recipient, news.about,
           format('[%s] %s', case news.about when 'raised' then alert.severity else 'resolved' end, alert.title),
           format(E'%s\n\nalert: %s\nsince: %s\n%s', alert.title, alert.alert_config_id,
                  to_char(alert.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
                  case news.about
                      when 'raised' then 'evidence: ' || alert.evidence::text
                      else 'resolved: ' || to_char(alert.resolved_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
                  end)
      from unnest(p_account_ids, p_recipients) as target (account_id, recipient)
     cross join jobs.alert_instances as alert
     cross join (values ('raised'), ('resolved')) as news (about)
     where alert.tenant_id = p_tenant_id
       and case news.about
               when 'raised' then alert.status in ('active', 'open', 'triggered')
               else alert.status = 'resolved'
                    and exists (select from jobs.alert_notifications as told
                                 where told.tenant_id = p_tenant_id
                                   and told.alert_instance_id = alert.id
                                   and told.account_id = target.account_id
                                   and told.recipient = target.recipient
                                   and told.about = 'raised'
                                   and told.first_called_at is not null
                                   and told.status <> 'failed')
           end
     order by alert.created_at
    on conflict do nothing;
    get diagnostics v_planned = row_count;
    return v_planned;
end
$$;

COMMENT ON FUNCTION jobs.plan_notifications(p_tenant_id uuid, p_account_ids uuid[], p_recipients text[]) IS 'Inserts the missing notifications for these accounts and recipients, and returns their number: one for each open alert, and one for each resolved alert of which the recipient may have been notified.';

CREATE FUNCTION jobs.provide_functions(p_runner text, p_names text[], p_lease interval) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    -- Rows of dead processes. Two runners that remove them at the same time do not wait for each other.
    with expired as (
        select name, runner
          from jobs.provided_functions
         where expires_at < v_now
           for update skip locked
    )
    delete from jobs.provided_functions as known
     using expired
     where known.name = expired.name
       and known.runner = expired.runner;
    insert into jobs.provided_functions (name, runner, expires_at)
    select distinct name, p_runner, v_now + p_lease
      from unnest(p_names) as name
     order by name
    on conflict (name, runner) do update
       set expires_at = excluded.expires_at;
end
$$;

COMMENT ON FUNCTION jobs.provide_functions(p_runner text, p_names text[], p_lease interval) IS 'Registers the Rust functions that a running process provides, or renews them, for the time of p_lease. Removes the rows of dead processes.';

CREATE FUNCTION jobs.prune_runs(p_tenant_id uuid, p_older_than interval, p_limit integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_before  constant timestamptz := now() - p_older_than;
    v_removed bigint := 0::bigint;
    v_more    bigint;
begin
    -- A lock key whose completed run was removed can run again, so runs of the current grain must stay.
    if p_older_than is null or p_older_than < interval '2 days' then
        raise exception 'p_older_than must be at least two days' using errcode = 'invalid_parameter_value';
    end if;
    if p_limit is null or p_limit < 1 then
        raise exception 'p_limit must be at least 1' using errcode = 'invalid_parameter_value';
    end if;
    with old as materialized (
        select old.id
          from jobs.job_runs as old
         where old.tenant_id = p_tenant_id
           and old.created_at < v_before
           and old.completed_at < v_before
           and old.retry_at is null
           and not exists (select from jobs.sync_errors as error
                            where error.tenant_id = p_tenant_id
                              and error.source_entity_type = 'job_run'
                              and error.source_entity_id = old.id
                              and not error.is_resolved)
         order by old.created_at
         limit p_limit
           for update skip locked
    )
    delete from jobs.job_runs as run using old where run.tenant_id = p_tenant_id and run.id = old.id;
    get diagnostics v_removed = row_count;
    with old as materialized (
        select old.schedule_id, old.fire_at
          from jobs.schedule_firings as old
         where old.tenant_id = p_tenant_id
           and old.outcome <> 'waiting'
           and old.fire_at < v_before
         order by old.fire_at
         limit p_limit
           for update skip locked
    )
    delete from jobs.schedule_firings as firing
     using old
     where firing.tenant_id = p_tenant_id and firing.schedule_id = old.schedule_id and firing.fire_at = old.fire_at;
    get diagnostics v_more = row_count;
    v_removed := greatest(v_removed, v_more);
    with old as materialized (
        select old.id from jobs.sync_errors as old
         where old.tenant_id = p_tenant_id and old.is_resolved and old.resolved_at < v_before
         order by old.resolved_at limit p_limit for update skip locked
    )
    delete from jobs.sync_errors as error using old where error.tenant_id = p_tenant_id and error.id = old.id;
    get diagnostics v_more = row_count;
    v_removed := greatest(v_removed, v_more);
    with old as materialized (
        select old.id from jobs.alert_instances as old
         where old.tenant_id = p_tenant_id and old.status = 'resolved' and old.resolved_at < v_before
         order by old.resolved_at limit p_limit for update skip locked
    )
    delete from jobs.alert_instances as alert using old where alert.tenant_id = p_tenant_id and alert.id = old.id;
    get diagnostics v_more = row_count;
    -- The caller repeats until none of the steps removed p_limit rows.
    return greatest(v_removed, v_more);
end
$$;

COMMENT ON FUNCTION jobs.prune_runs(p_tenant_id uuid, p_older_than interval, p_limit integer) IS 'Removes up to p_limit each of ended runs, decided firings, resolved dead letters and resolved alerts of a tenant older than p_older_than. A run with an open dead letter stays. Returns the largest of the four counts, so that the caller repeats until it is less than p_limit.';

CREATE FUNCTION jobs.put_builtin(p_tenant_id uuid, p_id uuid, p_name text, p_grain text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into jobs.functions (id, tenant_id, name, kind, target, grain)
    values (p_id, p_tenant_id, p_name, 'builtin', p_name, p_grain)
    on conflict (tenant_id, name) do nothing;
end
$$;

COMMENT ON FUNCTION jobs.put_builtin(p_tenant_id uuid, p_id uuid, p_name text, p_grain text) IS 'Registers a function that Postrider provides, unless the tenant has a function with this name.';

CREATE FUNCTION jobs.put_function(p_tenant_id uuid, p_id uuid, p_name text, p_kind text, p_target text, p_grain text, p_timeout_seconds integer, p_max_retries integer, p_initial_delay_ms integer, p_backoff_multiplier double precision, p_max_delay_ms integer, p_sealed_secret bytea, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Not an insert with `on conflict do update`: a check constraint would reject the inserted row when the caller
    -- passes no secret because the existing one is to be kept.
    update jobs.functions as known
       set kind = p_kind,
           target = p_target,
           grain = p_grain,
           timeout_seconds = p_timeout_seconds,
           max_retries = p_max_retries,
           initial_delay_ms = p_initial_delay_ms,
           backoff_multiplier = p_backoff_multiplier,
           max_delay_ms = p_max_delay_ms,
           sealed_secret = case when p_kind = 'http' then coalesce(p_sealed_secret, known.sealed_secret) end,
           updated_at = now()
     where known.tenant_id = p_tenant_id
       and known.name = p_name
       and known.id = p_id;
    if not found then
        insert into jobs.functions
            (id, tenant_id, name, kind, target, grain, timeout_seconds, max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms,
             sealed_secret)
        values (p_id, p_tenant_id, p_name, p_kind, p_target, p_grain, p_timeout_seconds, p_max_retries, p_initial_delay_ms,
                p_backoff_multiplier, p_max_delay_ms, p_sealed_secret)
        on conflict (tenant_id, name) do nothing;
        if not found then
            return false;
        end if;
    end if;
    -- The note leaves out the query of the URL, which may contain secrets.
    perform jobs.audit(p_tenant_id, p_actor, 'function.put', 'function:' || p_name, p_kind || ' ' || split_part(p_target, '?', 1));
    return true;
end
$$;

COMMENT ON FUNCTION jobs.put_function(p_tenant_id uuid, p_id uuid, p_name text, p_kind text, p_target text, p_grain text, p_timeout_seconds integer, p_max_retries integer, p_initial_delay_ms integer, p_backoff_multiplier double precision, p_max_delay_ms integer, p_sealed_secret bytea, p_actor text) IS 'Creates a function or replaces the one with this name. A null p_sealed_secret keeps the existing secret. Returns false if the name belongs to a function with another id: the secret is sealed to the id and would not fit.';

CREATE FUNCTION jobs.put_schedule(p_tenant_id uuid, p_id uuid, p_function text, p_cron text, p_timezone text, p_grain text, p_input jsonb, p_entities json, p_entity_hash text, p_depends_on text[], p_misfire text, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now     constant timestamptz := now();
    v_unknown text;
    v_needed  text[];
    v_ways    text[];
    v_next    text;
    v_at      integer := 1;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    -- One caller per tenant at a time, so that two schedules cannot form a cycle together.
    perform from tenancy.tenants where id = p_tenant_id for no key update;
    select wanted.name
      into v_unknown
      from unnest(p_depends_on || p_function) as wanted (name)
     where not exists (select from jobs.functions as function
                        where function.tenant_id = p_tenant_id and function.name = wanted.name)
     limit 1;
    if found then
        raise exception 'there is no function %', v_unknown
            using errcode = 'foreign_key_violation', constraint = 'schedules_run_a_function';
    end if;
    -- Visits every function that it would wait for, directly or not, once; the number of paths can be exponential.
    v_needed := p_depends_on;
    select coalesce(array_agg(p_function || ' → ' || needed.name order by needed.place), '{}')
      into v_ways
      from unnest(p_depends_on) with ordinality as needed (name, place);
    while v_at <= cardinality(v_needed) loop
        if v_needed[v_at] = p_function then
            raise exception 'the functions would wait for each other: %', v_ways[v_at]
                using errcode = 'check_violation', constraint = 'schedules_depend_in_no_circle';
        end if;
        for v_next in
            select distinct needed.name
              from jobs.schedules as schedule
             cross join unnest(schedule.depends_on) as needed (name)
             where schedule.tenant_id = p_tenant_id
               and schedule.function_name = v_needed[v_at]
               and schedule.id <> p_id
               and needed.name <> all (v_needed)
        loop
            v_needed := v_needed || v_next;
            v_ways := v_ways || (v_ways[v_at] || ' → ' || v_next);
        end loop;
        v_at := v_at + 1;
    end loop;
    insert into jobs.schedules as known
        (id, tenant_id, function_name, cron, timezone, grain, input, entities, entity_hash, depends_on, misfire, enabled, next_fire_at)
    values (p_id, p_tenant_id, p_function, p_cron, p_timezone, p_grain, p_input, p_entities, p_entity_hash, p_depends_on, p_misfire,
            p_enabled, p_next_fire_at)
    on conflict (tenant_id, id) do update
       set function_name = excluded.function_name,
           cron = excluded.cron,
           timezone = excluded.timezone,
           grain = excluded.grain,
           input = excluded.input,
           entities = excluded.entities,
           entity_hash = excluded.entity_hash,
           depends_on = excluded.depends_on,
           misfire = excluded.misfire,
           enabled = excluded.enabled,
           next_fire_at = case when known.enabled and excluded.enabled and known.cron = excluded.cron and known.timezone = excluded.timezone
                               then known.next_fire_at
                               else excluded.next_fire_at end,
           version = known.version + 1,
           updated_at = v_now;
    perform jobs.audit(p_tenant_id, p_actor, 'schedule.put', 'schedule:' || p_id, p_function || ' ' || p_cron || ' ' || p_timezone);
end
$$;

COMMENT ON FUNCTION jobs.put_schedule(p_tenant_id uuid, p_id uuid, p_function text, p_cron text, p_timezone text, p_grain text, p_input jsonb, p_entities json, p_entity_hash text, p_depends_on text[], p_misfire text, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) IS 'Creates or replaces a schedule. An enabled schedule keeps its next firing if cron and timezone stay the same. Raises an error if a function does not exist or if the dependencies form a cycle.';

CREATE FUNCTION jobs.raise_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text, p_title text, p_severity text DEFAULT 'warning'::text, p_evidence jsonb DEFAULT '{}'::jsonb) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_id  uuid;
begin
    perform tenancy.require_tenant(p_tenant_id);
    for v_try in 1 .. 100 loop
        -- The newest: two alerts can be open if they were raised before and after midnight.
        select alert.id
          into v_id
          from jobs.alert_instances as alert
         where alert.tenant_id = p_tenant_id
           and alert.alert_config_id = p_alert_config_id
           and coalesce(alert.external_object_id, '') = coalesce(p_external_object_id, '')
           and alert.status in ('active', 'open', 'triggered')
         order by alert.created_at desc
         limit 1
           for no key update;
        if found then
            update jobs.alert_instances as alert
               set title = p_title,
                   severity = p_severity,
                   evidence = p_evidence,
                   updated_at = v_now
             where alert.tenant_id = p_tenant_id
               and alert.id = v_id;
            return v_id;
        end if;
        insert into jobs.alert_instances (tenant_id, alert_config_id, external_object_id, title, severity, evidence)
        values (p_tenant_id, p_alert_config_id, p_external_object_id, p_title, p_severity, p_evidence)
        on conflict do nothing
        returning id into v_id;
        if found then
            return v_id;
        end if;
        -- Another transaction raised or resolved it at the same moment: try again.
    end loop;
    raise exception 'the alert % is raised and resolved too often; try again', p_alert_config_id using errcode = 'lock_not_available';
end
$$;

COMMENT ON FUNCTION jobs.raise_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text, p_title text, p_severity text, p_evidence jsonb) IS 'Raises an alert of a tenant, or updates the one that is open for this configuration and object. Returns the id of the alert. Functions that monitor other things than jobs call it too.';

CREATE FUNCTION jobs.recommendation(p_alert_config_id text) RETURNS text
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select case p_alert_config_id
               when 'failed-jobs' then 'Look at the dead letters, mend what they name, and retry or resolve each of them.'
               when 'long-running-jobs' then 'Look whether the function still works on it. Cancel the run if it does not, and invoke it again.'
               when 'retry-rate' then 'Look at the errors of the runs that were retried: something fails now and then.'
               else 'Look at the evidence, and resolve or dismiss this card.'
           end
$$;

COMMENT ON FUNCTION jobs.recommendation(p_alert_config_id text) IS 'Returns the recommendation on a card for this kind of alert.';

CREATE FUNCTION jobs.recover_runs(p_tenant_id uuid, p_lease interval, p_limit integer DEFAULT 100) RETURNS TABLE(id uuid, function_name text, worker text, retry_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
declare
    v_now   constant timestamptz := now();
    v_stale record;
begin
    perform tenancy.limit_idle_time('15s');
    for v_stale in
        select run.id, run.function_name, run.locked_by
          from jobs.job_runs as run
         where run.tenant_id = p_tenant_id
           and run.heartbeat_at < v_now - p_lease
         order by run.heartbeat_at
         limit p_limit
           for update skip locked
    loop
        return query
            select v_stale.id, v_stale.function_name, v_stale.locked_by,
                   jobs.note_failure(p_tenant_id, v_stale.id, 'the process that ran it went away', true);
    end loop;
end
$$;

COMMENT ON FUNCTION jobs.recover_runs(p_tenant_id uuid, p_lease interval, p_limit integer) IS 'Fails up to p_limit runs of a tenant whose last heartbeat is older than p_lease. They are retried like other failed runs.';

CREATE FUNCTION jobs.remove_function(p_tenant_id uuid, p_name text, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_dependent text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- put_schedule takes the same lock, so it waits and then sees that the function is gone.
    perform from tenancy.tenants where id = p_tenant_id for no key update;
    select schedule.function_name
      into v_dependent
      from jobs.schedules as schedule
     where schedule.tenant_id = p_tenant_id
       and p_name = any (schedule.depends_on || schedule.function_name)
     limit 1;
    if found then
        raise exception 'a schedule of the function % needs it', v_dependent
            using errcode = 'foreign_key_violation', constraint = 'schedules_run_a_function';
    end if;
    delete from jobs.functions
     where tenant_id = p_tenant_id
       and name = p_name;
    if not found then
        return false;
    end if;
    perform jobs.audit(p_tenant_id, p_actor, 'function.removed', 'function:' || p_name);
    return true;
end
$$;

COMMENT ON FUNCTION jobs.remove_function(p_tenant_id uuid, p_name text, p_actor text) IS 'Removes a function. Returns false if it does not exist; raises an error if a schedule runs it or depends on it.';

CREATE FUNCTION jobs.remove_schedule(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_function text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from jobs.schedules as schedule
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_id
    returning schedule.function_name into v_function;
    if not found then
        return false;
    end if;
    perform jobs.audit(p_tenant_id, p_actor, 'schedule.removed', 'schedule:' || p_id, v_function);
    return true;
end
$$;

COMMENT ON FUNCTION jobs.remove_schedule(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Removes a schedule and its firings; its runs stay. Returns false if it does not exist.';

CREATE FUNCTION jobs.reserve_notifications(p_tenant_id uuid, p_limit integer) RETURNS TABLE(id uuid, account_id uuid, recipient text, subject text, body text, claims integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        with due as materialized (
            select due.id
              from jobs.alert_notifications as due
             where due.tenant_id = p_tenant_id
               and due.status = 'queued'
               and due.called_at is null
             order by due.created_at
             limit p_limit
               for update skip locked
        )
        update jobs.alert_notifications as notification
           set claims = notification.claims + 1,
               attempts = notification.attempts + 1,
               called_at = v_now,
               first_called_at = coalesce(notification.first_called_at, v_now),
               updated_at = v_now
          from due
         where notification.tenant_id = p_tenant_id
           and notification.id = due.id
        returning notification.id, notification.account_id, notification.recipient, notification.subject, notification.body,
                  notification.claims;
end
$$;

COMMENT ON FUNCTION jobs.reserve_notifications(p_tenant_id uuid, p_limit integer) IS 'Reserves queued notifications of a tenant for one provider call each. After the commit, the call may have been made.';

CREATE FUNCTION jobs.resolve_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return jobs.close_alerts(p_tenant_id, array(
        select alert.id
          from jobs.alert_instances as alert
         where alert.tenant_id = p_tenant_id
           and alert.alert_config_id = p_alert_config_id
           and coalesce(alert.external_object_id, '') = coalesce(p_external_object_id, '')
           and alert.status in ('active', 'open', 'triggered'))) > 0;
end
$$;

COMMENT ON FUNCTION jobs.resolve_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text) IS 'Resolves the open alerts of a tenant for a configuration and object. Returns false if none is open.';

CREATE FUNCTION jobs.resolve_source(p_tenant_id uuid, p_source_type text, p_source_id uuid, p_by text, p_note text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update jobs.sync_errors as error
       set is_resolved = true,
           resolved_at = now(),
           resolved_by = p_by,
           resolution_note = p_note,
           updated_at = now()
     where error.tenant_id = p_tenant_id
       and error.source_entity_type = p_source_type
       and error.source_entity_id = p_source_id
       and not error.is_resolved
$$;

COMMENT ON FUNCTION jobs.resolve_source(p_tenant_id uuid, p_source_type text, p_source_id uuid, p_by text, p_note text) IS 'Resolves the open dead letter about a source, such as a job run. A source has at most one.';

CREATE FUNCTION jobs.resolve_sync_error(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_error jobs.sync_errors;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if coalesce(btrim(p_note), '') = '' then
        raise exception 'p_note must not be empty; it tells how the error was resolved' using errcode = 'invalid_parameter_value';
    end if;
    select *
      into v_error
      from jobs.sync_errors as error
     where error.tenant_id = p_tenant_id
       and error.id = p_id
       for update;
    if not found then
        return false;
    end if;
    if not v_error.is_resolved then
        perform jobs.resolve_source(p_tenant_id, v_error.source_entity_type, v_error.source_entity_id, p_actor, p_note);
        perform jobs.audit(p_tenant_id, p_actor, 'sync_error.resolved', 'sync_error:' || p_id, p_note);
    end if;
    return true;
end
$$;

COMMENT ON FUNCTION jobs.resolve_sync_error(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) IS 'Resolves a dead letter. Resolving it again changes nothing. Returns false if it does not exist.';

CREATE FUNCTION jobs.retry_run(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS TABLE(outcome text, run_id uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_run jobs.job_runs;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time('15s');
    select * into v_run
      from jobs.job_runs as run
     where run.tenant_id = p_tenant_id
       and run.id = p_id
       for update;
    if not found then
        return;
    end if;
    if v_run.status <> 'failed' then
        return query select v_run.status, v_run.id;
        return;
    end if;
    for v_try in 1 .. 100 loop
        begin
            update jobs.job_runs as run
               set status = 'running',
                   retry_count = run.retry_count + 1,
                   retry_at = null,
                   started_at = v_now,
                   completed_at = null
             where run.tenant_id = p_tenant_id
               and run.id = p_id;
            perform jobs.audit(p_tenant_id, p_actor, 'run.retried', 'job_run:' || p_id, v_run.lock_key);
            return query select 'retried', p_id;
            return;
        exception
            when unique_violation then
                return query
                    select 'taken', other.run_id
                      from jobs.run_with_lock_key(p_tenant_id, v_run.lock_key) as other;
                if found then
                    return;
                end if;
                -- The run that had the key has just ended without success: try again.
        end;
    end loop;
    raise exception 'the lock key % passes from run to run too often; try again', v_run.lock_key using errcode = 'lock_not_available';
end
$$;

COMMENT ON FUNCTION jobs.retry_run(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Runs a failed run again at once. Returns retried; running, completed or cancelled if the run is not failed; taken and the id of the other run if another run has the lock key; no row if the run does not exist.';

CREATE FUNCTION jobs.run_with_lock_key(p_tenant_id uuid, p_lock_key text) RETURNS TABLE(outcome text, run_id uuid)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET plan_cache_mode TO 'force_custom_plan'
    AS $$
begin
    -- Each of the two queries repeats the predicate of its unique index. The function is stable, so both see the same rows.
    return query
        select case when run.status = 'running' then 'running' else 'retry_pending' end, run.id
          from jobs.job_runs as run
         where run.tenant_id = p_tenant_id
           and run.lock_key = p_lock_key
           and (run.status = 'running' or run.retry_at is not null);
    if found then
        return;
    end if;
    -- No run of this key is active, so the status is completed. A predicate that says so would make the planner search
    -- the index of completed runs.
    return query
        select run.status, run.id
          from jobs.job_runs as run
         where run.tenant_id = p_tenant_id
           and run.lock_key = p_lock_key
           and not run.is_forced and (run.status in ('running', 'completed') or run.retry_at is not null);
end
$$;

COMMENT ON FUNCTION jobs.run_with_lock_key(p_tenant_id uuid, p_lock_key text) IS 'Returns the run that has a lock key: running, retry_pending or completed. An active run takes precedence over a completed one. Returns no row if the key is free.';

CREATE FUNCTION jobs.settle_notification(p_tenant_id uuid, p_id uuid, p_claim integer, p_verdict text, p_message_id text, p_error text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update jobs.alert_notifications as notification
       set status = case
                        when p_verdict = 'sent' then 'sent'
                        when p_verdict = 'failed' or (p_verdict = 'not_sent' and notification.attempts >= 5) then 'failed'
                        else 'queued'
                    end,
           called_at = case when p_verdict = 'not_sent' then null else notification.called_at end,
           in_doubt_since = case
                                when p_verdict = 'unknown' then coalesce(notification.in_doubt_since, v_now)
                                when p_verdict = 'not_sent' then notification.in_doubt_since
                            end,
           provider_message_id = coalesce(p_message_id, notification.provider_message_id),
           last_error = p_error,
           updated_at = v_now
     where notification.tenant_id = p_tenant_id
       and notification.id = p_id
       and notification.status = 'queued'
       and (notification.claims = p_claim or p_verdict = 'sent');
    return found;
end
$$;

COMMENT ON FUNCTION jobs.settle_notification(p_tenant_id uuid, p_id uuid, p_claim integer, p_verdict text, p_message_id text, p_error text) IS 'Records the result of a call: sent, failed, not_sent (safe to call again, up to five attempts) or unknown. Returns false if the claim is not the newest or the notification is settled; sent counts under any claim.';

CREATE FUNCTION jobs.switch_schedule(p_tenant_id uuid, p_id uuid, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    update jobs.schedules as schedule
       set enabled = p_enabled,
           next_fire_at = case when p_enabled then p_next_fire_at else schedule.next_fire_at end,
           version = schedule.version + 1,
           updated_at = now()
     where schedule.tenant_id = p_tenant_id
       and schedule.id = p_id
       and schedule.enabled <> p_enabled;
    if found then
        perform jobs.audit(p_tenant_id, p_actor, case when p_enabled then 'schedule.enabled' else 'schedule.disabled' end, 'schedule:' || p_id);
    end if;
    return exists (select from jobs.schedules as schedule where schedule.tenant_id = p_tenant_id and schedule.id = p_id);
end
$$;

COMMENT ON FUNCTION jobs.switch_schedule(p_tenant_id uuid, p_id uuid, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) IS 'Enables a schedule, with its next firing at p_next_fire_at, or disables it. Returns false if it does not exist.';

CREATE FUNCTION jobs.tenants_with_due_runs(p_limit integer, p_per_tenant integer, p_tenant_ids uuid[], p_per_tenant_ids integer[], p_kinds text[], p_builtins text[], p_after uuid) RETURNS TABLE(tenant_id uuid, runs integer)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
declare
    v_now             constant timestamptz := now();
    -- The second round ends at p_after, so that each tenant is visited once.
    v_is_second_round boolean := p_after is null;
    v_limit           integer;
    v_left            integer := p_limit;
begin
    tenant_id := coalesce(p_after, '00000000-0000-0000-0000-000000000000');
    while v_left > 0 loop
        select waiting.tenant_id
          into tenant_id
          from jobs.job_runs as waiting
         where ((waiting.status = 'running' and waiting.locked_by is null) or waiting.retry_at is not null)
           and waiting.tenant_id > tenants_with_due_runs.tenant_id
           and (not v_is_second_round or p_after is null or waiting.tenant_id <= p_after)
         order by waiting.tenant_id, coalesce(waiting.retry_at, waiting.started_at)
         limit 1;
        if not found then
            exit when v_is_second_round;
            v_is_second_round := true;
            tenant_id := '00000000-0000-0000-0000-000000000000';
            continue;
        end if;
        v_limit := least(v_left, coalesce(p_per_tenant_ids[array_position(p_tenant_ids, tenant_id)], p_per_tenant));
        continue when v_limit < 1;
        select count(*)::integer
          into runs
          from (select
                  from jobs.job_runs as due
                  left join jobs.functions as function on function.tenant_id = due.tenant_id and function.name = due.function_name
                 where ((due.status = 'running' and due.locked_by is null) or due.retry_at is not null)
                   and due.tenant_id = tenants_with_due_runs.tenant_id
                   and coalesce(due.retry_at, due.started_at) <= v_now
                   and jobs.can_run(function.kind, function.target, p_kinds, p_builtins)
                 order by coalesce(due.retry_at, due.started_at)
                 limit v_limit) as due;
        continue when runs = 0;
        v_left := v_left - runs;
        return next;
    end loop;
end
$$;

COMMENT ON FUNCTION jobs.tenants_with_due_runs(p_limit integer, p_per_tenant integer, p_tenant_ids uuid[], p_per_tenant_ids integer[], p_kinds text[], p_builtins text[], p_after uuid) IS 'Chooses up to p_limit due runs that no runner holds, and returns their number per tenant, in the order of tenant ids starting after tenant p_after. Chooses at most p_per_tenant_ids runs of each tenant in p_tenant_ids and p_per_tenant of every other tenant, only of functions that the runner can run (p_kinds, p_builtins). Locks nothing; claim_runs then claims per tenant.';

CREATE FUNCTION jobs.tenants_with_old_runs(p_older_than interval) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select from jobs.job_runs as old
                    where old.tenant_id = tenant.id
                      and old.created_at < now() - p_older_than
                      and old.completed_at < now() - p_older_than
                      and old.retry_at is null)
        or exists (select from jobs.schedule_firings as old
                    where old.tenant_id = tenant.id
                      and old.outcome <> 'waiting'
                      and old.fire_at < now() - p_older_than)
        or exists (select from jobs.sync_errors as old
                    where old.tenant_id = tenant.id
                      and old.is_resolved
                      and old.resolved_at < now() - p_older_than)
        or exists (select from jobs.alert_instances as old
                    where old.tenant_id = tenant.id
                      and old.status = 'resolved'
                      and old.resolved_at < now() - p_older_than)
$$;

COMMENT ON FUNCTION jobs.tenants_with_old_runs(p_older_than interval) IS 'Returns the tenants with runs, firings, dead letters or alerts that prune_runs may remove. Locks nothing; prune_runs then removes per tenant.';

CREATE FUNCTION jobs.tenants_with_stale_runs(p_lease interval) RETURNS TABLE(tenant_id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select run.tenant_id
      from jobs.job_runs as run
     where run.heartbeat_at < now() - p_lease
     group by run.tenant_id
     order by min(run.heartbeat_at)
$$;

COMMENT ON FUNCTION jobs.tenants_with_stale_runs(p_lease interval) IS 'Returns the tenants with runs whose last heartbeat is older than p_lease, oldest heartbeat first. Locks nothing; recover_runs then recovers per tenant.';

CREATE FUNCTION jobs.tenants_with_waiting_firings(p_limit integer) RETURNS TABLE(tenant_id uuid, firings integer)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select oldest.tenant_id, count(*)::integer
      from (select firing.tenant_id, firing.looked_at
              from jobs.schedule_firings as firing
             where firing.outcome = 'waiting'
             order by firing.looked_at
             limit p_limit) as oldest
     group by oldest.tenant_id
     order by min(oldest.looked_at)
$$;

COMMENT ON FUNCTION jobs.tenants_with_waiting_firings(p_limit integer) IS 'Chooses up to p_limit waiting firings, least recently checked first, and returns their number per tenant. Locks nothing; fire_waiting then checks per tenant.';

CREATE FUNCTION jobs.unmet_dependencies(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamp with time zone) RETURNS TABLE(function_name text, why text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    with own as (
        select jobs.grain_start(p_grain, p_fire_at) as since,
               jobs.grain_start(p_grain, p_fire_at) + jobs.grain_length(p_grain) as until
    )
    select wanted.name,
           coalesce((select case
                                when run.status = 'running' then 'it is running'
                                when run.retry_at is not null then 'it failed and waits for its retry'
                                when run.status = 'failed' then 'it failed'
                                else 'it was cancelled'
                            end || ' (run ' || run.id || ')'
                       from jobs.job_runs as run, own
                      where run.tenant_id = p_tenant_id
                        and run.function_name = wanted.name
                        and jobs.grain_overlaps(run.grain, run.grain_start, own.since, own.until)
                      order by run.created_at desc
                      limit 1),
                    'it has not run yet')
      from unnest(p_depends_on) as wanted (name), own
     where not exists (select
                         from jobs.job_runs as run
                        where run.tenant_id = p_tenant_id
                          and run.function_name = wanted.name
                          and run.status = 'completed'
                          and jobs.grain_overlaps(run.grain, run.grain_start, own.since, own.until))
$$;

COMMENT ON FUNCTION jobs.unmet_dependencies(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamp with time zone) IS 'Returns the functions in p_depends_on that have no completed run in a grain that overlaps the grain of the firing, each with the reason.';

CREATE FUNCTION jobs.which_ended(p_tenant_ids uuid[], p_ids uuid[]) RETURNS TABLE(tenant_id uuid, id uuid)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select run.tenant_id, run.id
      from unnest(p_tenant_ids, p_ids) as given (tenant_id, id)
      join jobs.job_runs as run on run.tenant_id = given.tenant_id and run.id = given.id
     where run.status <> 'running'
       and run.retry_at is null
       and (run.tenant_id = (select tenancy.current_tenant_id()) or (select tenancy.acts_for_server()))
$$;

COMMENT ON FUNCTION jobs.which_ended(p_tenant_ids uuid[], p_ids uuid[]) IS 'Returns those of the runs that have ended: runs of the tenant of the context, or of all tenants for the server.';

CREATE FUNCTION jobs.why_waiting(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone) RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return (
        select string_agg('waits for ' || unmet.function_name || ': ' || unmet.why, '; ' order by unmet.function_name)
          from jobs.schedules as schedule
          join jobs.functions as function on function.tenant_id = schedule.tenant_id and function.name = schedule.function_name
         cross join lateral jobs.unmet_dependencies(schedule.tenant_id, schedule.depends_on,
                                                    coalesce(schedule.grain, function.grain), p_fire_at) as unmet
         where schedule.tenant_id = p_tenant_id
           and schedule.id = p_schedule_id);
end
$$;

COMMENT ON FUNCTION jobs.why_waiting(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone) IS 'Describes the dependencies for which a firing waits; null if it waits for none.';

CREATE FUNCTION jobs.withdraw_functions(p_runner text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    delete from jobs.provided_functions where runner = p_runner
$$;

COMMENT ON FUNCTION jobs.withdraw_functions(p_runner text) IS 'Removes the Rust functions of a process that stops.';

CREATE FUNCTION m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer DEFAULT 10) RETURNS TABLE(id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $_$
declare
    -- When this session last began at the head, and where its last claim began: microseconds, microseconds, id. These
    -- are numbers, because the text of a time depends on the session's settings. Any other value is ignored.
    v_memory constant bigint[] := string_to_array(
        substring(current_setting('m10_recovery.claims_begin', true) from '^\d{1,18},-?\d{1,18},\d{1,18}$'), ',')::bigint[];
    v_now constant bigint := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    -- A time in the future is ignored, too: clocks can be set back.
    v_from_head boolean := v_memory is null or v_now - v_memory[1] not between 0 and 1000000;
    v_begin_at timestamptz := timestamptz '-infinity';
    v_begin_id bigint := 0::bigint;
    v_ids bigint[];
begin
    if coalesce(btrim(p_processor_id), '') = '' then
        raise exception 'a processor must name itself to claim events'
            using errcode = 'invalid_parameter_value',
                  hint = 'Use a name that is new at every start of the process.';
    end if;
    if p_batch_size is null or p_batch_size not between 1 and 10000 then
        raise exception 'the batch size must lie between 1 and 10000, not %', coalesce(p_batch_size::text, 'null')
            using errcode = 'invalid_parameter_value';
    end if;

    if not v_from_head then
        v_begin_at := 'epoch'::timestamptz + v_memory[2] * interval '1 microsecond';
        v_begin_id := v_memory[3];
    end if;
    loop
        v_ids := array(
            select ready.id
              from m10_recovery.outbox as ready
             where ready.processed_at is null
               -- Means `process_after is null or process_after <= now()`, written as in the index.
               and coalesce(ready.process_after, '-infinity'::timestamptz) <= now()
               and (ready.claimed_at is null or ready.claimed_at < now() - interval '5 minutes')
               and (coalesce(ready.process_after, '-infinity'::timestamptz), ready.id) >= (v_begin_at, v_begin_id)
             order by coalesce(ready.process_after, '-infinity'::timestamptz), ready.id
             limit p_batch_size
               for update skip locked);
        exit when v_from_head or cardinality(v_ids) = p_batch_size;
        v_from_head := true;
        v_begin_at := timestamptz '-infinity';
        v_begin_id := 0::bigint;
    end loop;
    if cardinality(v_ids) = 0 then
        return;
    end if;

    -- An event without process_after sorts before all others, so there is no position to remember.
    select first.process_after, first.id
      into v_begin_at, v_begin_id
      from m10_recovery.outbox as first
     where first.id = v_ids[1]
       and first.process_after is not null;
    if found then
        perform set_config('m10_recovery.claims_begin',
                           concat_ws(',', case when v_from_head then v_now else v_memory[1] end,
                                     (extract(epoch from v_begin_at) * 1000000)::bigint, v_begin_id),
                           false);
    end if;

    return query
        update m10_recovery.outbox as event
           set claimed_at = now(),
               claimed_by = p_processor_id
         where event.id = any (v_ids)
     returning event.id,
               event.aggregate_type,
               event.aggregate_id,
               event.event_type,
               event.payload,
               event.retry_count;
end
$_$;

COMMENT ON FUNCTION m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer) IS 'Claims up to p_batch_size ready events that no processor holds, oldest first, for p_processor_id. A claim is valid for five minutes.';

CREATE FUNCTION m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_event record;
begin
    if p_success then
        update m10_recovery.outbox as event
           set processed_at = now()
         where event.id = p_event_id
           and event.claimed_by = p_processor_id
           and event.processed_at is null;
    elsif p_success is null then
        raise exception 'p_success must be true or false' using errcode = 'invalid_parameter_value';
    else
        update m10_recovery.outbox as event
           set retry_count = event.retry_count + 1,
               process_after = now() + (power(2, least(event.retry_count, 10)) || ' seconds')::interval,
               claimed_at = null,
               claimed_by = null,
               last_error = left(p_error, 2000)
         where event.id = p_event_id
           and event.claimed_by = p_processor_id
           and event.processed_at is null;
    end if;
    if found then
        return;
    end if;

    select event.processed_at, event.claimed_by
      into v_event
      from m10_recovery.outbox as event
     where event.id = p_event_id;
    if not found then
        raise exception 'there is no event %', p_event_id using errcode = 'no_data_found';
    end if;
    if p_success and v_event.processed_at is not null and v_event.claimed_by = p_processor_id then
        return;
    end if;
    raise exception 'event % is not held by %', p_event_id, coalesce(p_processor_id, 'null')
        using errcode = 'PR001',
              detail = case
                           when v_event.processed_at is not null then 'It is processed.'
                           when v_event.claimed_by is null then 'No processor holds it.'
                           else 'Another processor holds it.'
                       end,
              hint = 'A claim lasts five minutes; it may have gone stale and been taken by another processor.';
end
$$;

COMMENT ON FUNCTION m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text) IS 'Ends a claim. Success is final; failure releases the event with an exponential backoff. Only the processor that holds the claim can end it; reporting a success twice is allowed.';

CREATE FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
    -- `#> '{}'` returns the payload uncompressed: a value from a table's column may be compressed.
    if pg_column_size(p_payload #> '{}') > 262144 then
        raise exception 'the payload has % bytes; the limit is 262144', pg_column_size(p_payload #> '{}')
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;
    -- A few bytes of jsonb can be megabytes of text, and sinks receive the text.
    if octet_length(p_payload::text) > 1048576 then
        raise exception 'the payload has % bytes as text; the limit is 1048576', octet_length(p_payload::text)
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish a reference to the data instead of the data.';
    end if;

    -- A new event is ready at once, so that claims take new events and due retries in the order in which they became
    -- ready.
    insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, process_after, tenant_id)
    values (p_aggregate_type, p_aggregate_id, p_event_type, p_payload, now(), tenancy.publishing_tenant_id())
    returning id into v_id;
    return v_id;
end
$$;

COMMENT ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) IS 'Publishes an event in the transaction of the caller and returns its id. The event exists if and only if that transaction commits.';

CREATE FUNCTION tenancy.account_of_callback(p_tenant_id uuid, p_account_id uuid) RETURNS TABLE(provider text, settings jsonb, sealed_secret bytea)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        select account.provider, account.settings, account.sealed_secret
          from tenancy.provider_accounts as account
         where account.tenant_id = p_tenant_id
           and account.id = p_account_id
           and exists (select from tenancy.tenants as tenant where tenant.id = p_tenant_id and tenant.removing_since is null);
end
$$;

COMMENT ON FUNCTION tenancy.account_of_callback(p_tenant_id uuid, p_account_id uuid) IS 'Returns provider, settings and sealed secret of an account, for webhooks and callbacks of its provider. Their URL names the tenant and the account. Returns nothing while the tenant is being removed.';

CREATE FUNCTION tenancy.named_tenant_id() RETURNS uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN (NULLIF(current_setting('app.current_tenant_id'::text, true), ''::text) IS NULL) THEN (NULLIF(current_setting('app.current_tenant'::text, true), ''::text))::uuid WHEN ((NULLIF(current_setting('app.current_tenant'::text, true), ''::text) IS NULL) OR ((NULLIF(current_setting('app.current_tenant'::text, true), ''::text))::uuid = (NULLIF(current_setting('app.current_tenant_id'::text, true), ''::text))::uuid)) THEN (NULLIF(current_setting('app.current_tenant_id'::text, true), ''::text))::uuid ELSE NULL::uuid END;

COMMENT ON FUNCTION tenancy.named_tenant_id() IS 'Returns the tenant that the session names in `app.current_tenant_id` or its alias `app.current_tenant`, without checking the right to name it. Returns null when neither is set or when they differ.';

CREATE FUNCTION tenancy.verified_tenant_id(p_tenant_id uuid) RETURNS uuid
    LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION tenancy.verified_tenant_id(p_tenant_id uuid) IS 'Returns the given tenant if `app.tenant_signature` holds its signature under a valid context key, and raises an error if not.';

CREATE FUNCTION tenancy.current_tenant_id() RETURNS uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN (tenancy.named_tenant_id() IS NULL) THEN NULL::uuid WHEN (pg_has_role(SESSION_USER, 'postrider_worker'::name, 'member'::text) OR pg_has_role(SESSION_USER, 'postrider_owner'::name, 'member'::text)) THEN tenancy.named_tenant_id() ELSE tenancy.verified_tenant_id(tenancy.named_tenant_id()) END;

COMMENT ON FUNCTION tenancy.current_tenant_id() IS 'Returns the tenant that the transaction acts for, or null. All row-level security policies use it. Logins that are members of postrider_worker or postrider_owner name the tenant themselves; all other logins need the signature of the server.';

CREATE FUNCTION tenancy.acts_for_server() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN COALESCE((tenancy.current_tenant_id() = '00000000-0000-0000-0000-000000000000'::uuid), false);

COMMENT ON FUNCTION tenancy.acts_for_server() IS 'Whether the transaction acts for the server itself, before a tenant is known. The server then uses the nil UUID, which no tenant has.';

CREATE FUNCTION tenancy.add_context_key() RETURNS void
    LANGUAGE sql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    insert into tenancy.context_keys (key, inner_pad, outer_pad)
    select fresh.key, fresh.inner_pad, fresh.outer_pad from tenancy.new_hmac_key() as fresh
$$;

COMMENT ON FUNCTION tenancy.add_context_key() IS 'Adds a random context key with its two padded blocks.';

CREATE FUNCTION tenancy.adopt_tenant(p_tenant_id uuid, p_epoch_id uuid, p_copied_after timestamp with time zone, p_actor text, OUT items bigint, OUT replies bigint, OUT campaigns bigint, OUT firings bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    c_note constant text := 'adopted after a restore: it may have been called after the copy was taken';
    v_now constant timestamptz := now();
    v_more bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Send jobs are locked before their items, as in every function. Their workers are gone; the lost claim counts as
    -- no attempt.
    update execution.job_queue as job
       set status = 'queued',
           attempts = greatest(job.attempts - 1, 0),
           locked_by = null,
           locked_at = null,
           run_after = case when phase.status = 'paused' then 'infinity'::timestamptz else v_now end
      from execution.campaign_runs as run
           join execution.campaign_phases as phase on phase.tenant_id = run.tenant_id and phase.id = run.phase_id
     where job.tenant_id = p_tenant_id
       and job.status = 'locked'
       and run.tenant_id = p_tenant_id
       and run.id = job.run_id;

    with doubted as (
        update execution.channel_outbox as item
           set in_doubt_since = v_now,
               error = coalesce(item.error, c_note)
         where item.tenant_id = p_tenant_id
           and item.status = 'queued'
     returning item.id, item.run_id, item.job_id
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select p_tenant_id, doubted.run_id, doubted.job_id, doubted.id, p_actor, 'item.adopted', c_note
      from doubted;
    get diagnostics items = row_count;
    -- Their resolvers are gone, and the quiet time starts again: the original may have repeated a call.
    update execution.doubts as doubt
       set held_by = null,
           held_until = null,
           next_look_at = v_now
     where doubt.tenant_id = p_tenant_id
       and (doubt.held_by is not null or doubt.next_look_at > v_now);

    with begun as (
        insert into execution.channel_outbox
               (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key, status, error,
                reserved_by, attempt, created_at, in_doubt_since)
        select p_tenant_id, job.workspace_id, job.run_id, job.id, run.channel, run.provider, item.id,
               case run.channel when 'email' then lead.email when 'voice' then lead.phone end,
               execution.outbox_key(run.id, item.id, run.key_part, run.scheduled_for), 'queued', c_note,
               'adoption-' || p_epoch_id, job.attempts, greatest(run.created_at, p_copied_after), v_now
          from execution.job_queue as job
               join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
               cross join unnest(job.item_ids) as item (id)
               left join execution.leads as lead on lead.tenant_id = job.tenant_id and lead.id = item.id
         where job.tenant_id = p_tenant_id
           and job.status in ('queued', 'failed')
           and (run.scheduled_for is null or run.scheduled_for <= v_now)
            on conflict (tenant_id, workspace_id, idempotency_key) do nothing
     returning id, run_id, job_id
    ), followed as (
        insert into execution.doubts (outbox_id, tenant_id, account_id, provider, campaign_id, in_doubt_since)
        select begun.id, p_tenant_id, account.id, account.provider, run.campaign_id, v_now
          from begun
               join execution.campaign_runs as run on run.tenant_id = p_tenant_id and run.id = begun.run_id
               join tenancy.provider_accounts as account
                 on account.tenant_id = run.tenant_id and account.id = run.provider_account_id
            on conflict do nothing
    )
    insert into execution.campaign_audit_log (tenant_id, run_id, job_id, outbox_id, actor, action, note)
    select p_tenant_id, begun.run_id, begun.job_id, begun.id, p_actor, 'item.adopted', c_note
      from begun;
    get diagnostics v_more = row_count;
    items := items + v_more;

    -- The original may have started the next phase under keys that this database does not have, so an operator starts
    -- it.
    with stopped as (
        update execution.campaigns as campaign
           set auto_advance = false,
               not_advanced = 'adopted after a restore: its next phase may have been started from the original; start it by hand'
         where campaign.tenant_id = p_tenant_id
           and campaign.auto_advance
           and exists (select from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                          and phase.status <> 'not_started')
           and exists (select from execution.campaign_phases as phase
                        where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                          and phase.status = 'not_started')
     returning campaign.id
    )
    insert into execution.campaign_audit_log (tenant_id, campaign_id, actor, action, note)
    select p_tenant_id, stopped.id, p_actor, 'campaign.adopted', 'its next phase is started by hand'
      from stopped;
    get diagnostics campaigns = row_count;
    update execution.campaign_phases as phase
       set due = null
     where phase.tenant_id = p_tenant_id
       and phase.due = 'advance';

    -- The dispatcher looks up a reply in doubt first, where the provider can be asked.
    update channels.channel_outbox as reply
       set status = 'pending',
           in_doubt_since = coalesce(reply.in_doubt_since, v_now),
           locked_at = null,
           locked_by = null,
           next_attempt_at = case reply.status when 'sending' then v_now else reply.next_attempt_at end,
           last_error = c_note,
           updated_at = v_now
     where reply.tenant_id = p_tenant_id
       and reply.status in ('pending', 'sending');
    get diagnostics replies = row_count;
    update jobs.alert_notifications as notification
       set first_called_at = coalesce(notification.first_called_at, greatest(notification.created_at, p_copied_after)),
           called_at = v_now,
           in_doubt_since = coalesce(notification.in_doubt_since, v_now),
           claims = notification.claims + 1,
           last_error = c_note,
           updated_at = v_now
     where notification.tenant_id = p_tenant_id
       and notification.status = 'queued';

    update jobs.schedule_firings as firing
       set outcome = 'skipped',
           reason = c_note,
           decided_at = v_now
     where firing.tenant_id = p_tenant_id
       and firing.outcome = 'waiting';
    get diagnostics firings = row_count;
end
$$;

COMMENT ON FUNCTION tenancy.adopt_tenant(p_tenant_id uuid, p_epoch_id uuid, p_copied_after timestamp with time zone, p_actor text, OUT items bigint, OUT replies bigint, OUT campaigns bigint, OUT firings bigint) IS 'Makes everything in doubt that the original may have sent for this tenant after the copy was taken, and counts it. begin_epoch calls it for every tenant.';

CREATE FUNCTION tenancy.authenticate_api_key(p_tenant_id uuid, p_key_hash bytea) RETURNS TABLE(key_id uuid, role text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    update tenancy.api_keys as key
       set last_used_at = v_now
     where key.tenant_id = p_tenant_id
       and key.key_hash = p_key_hash
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > v_now)
       and (key.last_used_at is null or key.last_used_at < v_now - interval '1 minute');

    return query
        select key.id,
               key.role,
               case
                   when key.revoked_at is not null then 'revoked'
                   when key.expires_at <= v_now then 'expired'
                   else 'active'
               end
          from tenancy.api_keys as key
         where key.tenant_id = p_tenant_id
           and key.key_hash = p_key_hash;
end
$$;

COMMENT ON FUNCTION tenancy.authenticate_api_key(p_tenant_id uuid, p_key_hash bytea) IS 'Returns id, role and state (`active`, `expired`, `revoked`) of the key with this hash. The key names its tenant; the hash proves the right to act for it, so no context is needed. The function updates `last_used_at` at most once a minute, so that a busy key does not make every request a write.';

CREATE FUNCTION tenancy.authenticate_session(p_tenant_id uuid, p_token_hash bytea) RETURNS TABLE(session_id uuid, key_id uuid, role text, name text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    update tenancy.sessions as session
       set last_seen_at = v_now
      from tenancy.api_keys as key
     where session.tenant_id = p_tenant_id
       and session.token_hash = p_token_hash
       and session.expires_at > v_now
       and session.last_seen_at + session.idle_for > v_now
       and session.last_seen_at < v_now - interval '1 minute'
       and key.tenant_id = p_tenant_id
       and key.id = session.key_id
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > v_now);
    if found then
        update tenancy.api_keys as key
           set last_used_at = v_now
          from tenancy.sessions as session
         where session.tenant_id = p_tenant_id
           and session.token_hash = p_token_hash
           and key.tenant_id = p_tenant_id
           and key.id = session.key_id
           and key.revoked_at is null
           and (key.last_used_at is null or key.last_used_at < v_now - interval '1 minute');
    end if;

    return query
        select session.id,
               session.key_id,
               key.role,
               session.name,
               case
                   when key.revoked_at is not null then 'key_revoked'
                   when key.expires_at <= v_now then 'key_expired'
                   when session.expires_at <= v_now or session.last_seen_at + session.idle_for <= v_now then 'expired'
                   else 'active'
               end
          from tenancy.sessions as session
          join tenancy.api_keys as key on key.tenant_id = session.tenant_id
                                      and key.id = session.key_id
         where session.tenant_id = p_tenant_id
           and session.token_hash = p_token_hash;
end
$$;

COMMENT ON FUNCTION tenancy.authenticate_session(p_tenant_id uuid, p_token_hash bytea) IS 'Returns the session with this hash, with id and role of its API key, and a state: `active`, `expired` (also after idle time), `key_expired` or `key_revoked`. The token names its tenant; the hash proves the right to act for it, so no context is needed. The function updates `last_seen_at`, and `last_used_at` of the key, at most once a minute.';

CREATE FUNCTION tenancy.begin_epoch(p_cause text, p_reason text, p_actor text) RETURNS TABLE(installation_id uuid, number integer, cause text, items_in_doubt bigint, replies_in_doubt bigint, campaigns_stopped bigint, firings_skipped bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_before tenancy.epochs;
    v_epoch tenancy.epochs;
    v_tenant_id uuid;
    v_adopted record;
begin
    lock table tenancy.epochs in share row exclusive mode;
    select epoch.* into v_before from tenancy.epochs as epoch order by epoch.number desc limit 1;
    if v_before.number is null then
        raise exception 'no process has ever sent from this database, so there is nothing to adopt'
            using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.epochs
           (number, installation_id, cause, system_identifier, database_oid, database_name, table_oid, timeline, actor, reason,
            copied_after)
    select v_before.number + 1, v_before.installation_id, p_cause, here.system_identifier, here.database_oid, here.database_name,
           here.table_oid, here.timeline, p_actor, left(p_reason, 2000),
           coalesce((select max(known.marked_at) from tenancy.process_marks as known where known.epoch_id = v_before.id),
                    v_before.began_at)
      from tenancy.database_identity() as here
    returning * into v_epoch;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (tenancy.system_tenant_id(), p_actor, 'installation.' || p_cause, 'installation:' || v_epoch.installation_id,
            left(p_reason, 2000));
    if p_cause = 'adopted' then
        for v_tenant_id in select tenant.id from tenancy.tenants as tenant order by tenant.id loop
            select adopted.* into v_adopted
              from tenancy.adopt_tenant(v_tenant_id, v_epoch.id, v_epoch.copied_after, p_actor) as adopted;
            v_epoch.items_in_doubt := v_epoch.items_in_doubt + v_adopted.items;
            v_epoch.replies_in_doubt := v_epoch.replies_in_doubt + v_adopted.replies;
            v_epoch.campaigns_stopped := v_epoch.campaigns_stopped + v_adopted.campaigns;
            v_epoch.firings_skipped := v_epoch.firings_skipped + v_adopted.firings;
        end loop;
        update tenancy.epochs as epoch
           set items_in_doubt = v_epoch.items_in_doubt,
               replies_in_doubt = v_epoch.replies_in_doubt,
               firings_skipped = v_epoch.firings_skipped,
               campaigns_stopped = v_epoch.campaigns_stopped
         where epoch.number = v_epoch.number;
    end if;
    return query
        select v_epoch.installation_id, v_epoch.number, v_epoch.cause, v_epoch.items_in_doubt, v_epoch.replies_in_doubt,
               v_epoch.campaigns_stopped, v_epoch.firings_skipped;
end
$$;

COMMENT ON FUNCTION tenancy.begin_epoch(p_cause text, p_reason text, p_actor text) IS 'Begins another epoch, in which this database is the installation. With cause `adopted`, everything that the original may have sent after the copy was taken becomes in doubt, tenant by tenant in one transaction; with cause `moved` nothing does. Only members of the owner role may call it.';

CREATE FUNCTION tenancy.begin_removal(p_tenant_id uuid) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- Waits for transactions that add send jobs; later ones see the mark.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id for update;
    update tenancy.tenants as tenant
       set removing_since = v_now
     where tenant.id = p_tenant_id
       and tenant.removing_since is null;
    -- Without keys no request can act for the tenant.
    delete from tenancy.api_keys as key where key.tenant_id = p_tenant_id;
    update jobs.schedules as schedule
       set enabled = false
     where schedule.tenant_id = p_tenant_id
       and schedule.enabled;
end
$$;

COMMENT ON FUNCTION tenancy.begin_removal(p_tenant_id uuid) IS 'Marks a tenant as being removed: its rows may be deleted, it gets no send jobs, and its accounts take no webhooks. Deletes its API keys and disables its schedules. Repeating the call changes nothing.';

CREATE FUNCTION tenancy.begin_request(p_tenant_id uuid, p_key text, p_fingerprint bytea) RETURNS TABLE(state text, status smallint, location text, body text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '100ms'
    AS $$
declare
    v_now constant timestamptz := now();
    v_request tenancy.requests;
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.requests as request
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = p_key
       and request.created_at < v_now - interval '24 hours';
    insert into tenancy.requests (tenant_id, idempotency_key, fingerprint)
    values (p_tenant_id, p_key, p_fingerprint)
        on conflict do nothing;
    if found then
        return query select 'fresh', null::smallint, null::text, null::text;
        return;
    end if;

    select request.*
      into v_request
      from tenancy.requests as request
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = p_key;
    return query
        select case
                   when v_request.fingerprint is null or v_request.status is null then 'in_progress'
                   when v_request.fingerprint <> p_fingerprint then 'another'
                   else 'answered'
               end,
               v_request.status,
               v_request.location,
               v_request.body;
exception
    when lock_not_available then
        return query select 'in_progress', null::smallint, null::text, null::text;
end
$$;

COMMENT ON FUNCTION tenancy.begin_request(p_tenant_id uuid, p_key text, p_fingerprint bytea) IS 'Takes an idempotency key of the tenant for this transaction. State `fresh`: do the work, then call finish_request. `answered`: the recorded response follows. `in_progress`: another transaction holds the key. `another`: a different request used the key.';

CREATE FUNCTION tenancy.confirm_process(p_witness_id uuid, p_timeline integer) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update tenancy.process_marks as known
       set timeline = p_timeline
     where known.witness_id = p_witness_id
       and known.timeline < p_timeline
$$;

COMMENT ON FUNCTION tenancy.confirm_process(p_witness_id uuid, p_timeline integer) IS 'Confirms a timeline on behalf of a process that has ended: the database has everything that its witness knows.';

CREATE FUNCTION tenancy.context_key() RETURNS bytea
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select key.key from tenancy.context_keys as key order by key.id desc limit 1
$$;

COMMENT ON FUNCTION tenancy.context_key() IS 'Returns the newest context key. A server process reads it at its start and signs tenants with it.';

CREATE FUNCTION tenancy.count_unfinished(OUT reserved_items bigint, OUT begun_items bigint, OUT replies bigint, OUT notifications bigint, OUT schedules bigint, OUT firings bigint, OUT campaigns bigint, OUT events bigint, OUT job_runs bigint) RETURNS record
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select (select count(*) from execution.channel_outbox as item where item.status = 'queued'),
           (select coalesce(sum(cardinality(job.item_ids)
                                - (select count(*)
                                     from execution.channel_outbox as item
                                    where item.tenant_id = job.tenant_id
                                      and item.job_id = job.id)), 0)::bigint
              from execution.job_queue as job
                   join execution.campaign_runs as run on run.tenant_id = job.tenant_id and run.id = job.run_id
             where job.status in ('queued', 'locked', 'failed')
               and (run.scheduled_for is null or run.scheduled_for <= now())),
           (select count(*) from channels.channel_outbox as reply where reply.status in ('pending', 'sending')),
           (select count(*) from jobs.alert_notifications as notification where notification.status = 'queued'),
           (select count(*) from jobs.schedules as schedule where schedule.enabled and schedule.next_fire_at <= now()),
           (select count(*) from jobs.schedule_firings as firing where firing.outcome = 'waiting'),
           (select count(*)
              from execution.campaigns as campaign
             where campaign.auto_advance
               and exists (select from execution.campaign_phases as phase
                            where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                              and phase.status <> 'not_started')
               and exists (select from execution.campaign_phases as phase
                            where phase.tenant_id = campaign.tenant_id and phase.campaign_id = campaign.id
                              and phase.status = 'not_started')),
           (select count(*) from m10_recovery.outbox as event where event.processed_at is null),
           (select count(*) from jobs.job_runs as run where run.status = 'running' or run.retry_at is not null)
$$;

COMMENT ON FUNCTION tenancy.count_unfinished(OUT reserved_items bigint, OUT begun_items bigint, OUT replies bigint, OUT notifications bigint, OUT schedules bigint, OUT firings bigint, OUT campaigns bigint, OUT events bigint, OUT job_runs bigint) IS 'Counts the rows of all tenants that an adoption would change, and the unfinished events and job runs.';

CREATE FUNCTION tenancy.create_api_key(p_tenant_id uuid, p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamp with time zone, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_expires_at <= now() then
        raise exception 'the expiry lies in the past: %', p_expires_at using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.api_keys (id, tenant_id, name, role, hint, key_hash, expires_at)
    values (p_id, p_tenant_id, p_name, p_role, p_hint, p_key_hash, p_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'key.created', 'key:' || p_id, p_role);
end
$$;

COMMENT ON FUNCTION tenancy.create_api_key(p_tenant_id uuid, p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamp with time zone, p_actor text) IS 'Stores the hash of a new API key of the tenant. Raises an error if the expiry is in the past.';

CREATE FUNCTION tenancy.create_provider_account(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, settings, sealed_secret)
    values (p_id, p_tenant_id, p_workspace_id, p_name, p_provider, p_settings, p_sealed_secret);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'account.created', 'account:' || p_id, p_provider);
end
$$;

COMMENT ON FUNCTION tenancy.create_provider_account(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text) IS 'Creates a provider account of the tenant, with a sealed secret.';

CREATE FUNCTION tenancy.create_tenant(p_tenant_id uuid, p_workspace_id uuid, p_name text, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    insert into tenancy.tenants (id, name) values (p_tenant_id, p_name);
    insert into tenancy.workspaces (id, tenant_id, name) values (p_workspace_id, p_tenant_id, 'default');
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'tenant.created', 'tenant:' || p_tenant_id);
end
$$;

COMMENT ON FUNCTION tenancy.create_tenant(p_tenant_id uuid, p_workspace_id uuid, p_name text, p_actor text) IS 'Creates a tenant with its workspace `default`. Only members of the owner role may call it, because a caller that can create tenants can act for all of them.';

CREATE FUNCTION tenancy.database_identity(OUT system_identifier text, OUT database_oid bigint, OUT database_name text, OUT table_oid bigint, OUT timeline integer, OUT lsn pg_lsn) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    select database.oid::bigint, database.datname::text
      into strict database_oid, database_name
      from pg_database as database
     where database.datname = current_database();
    table_oid := 'tenancy.epochs'::regclass::oid::bigint;
    begin
        select control.system_identifier::text into system_identifier from pg_control_system() as control;
    exception when insufficient_privilege or feature_not_supported or undefined_function then
        system_identifier := '';
    end;
    begin
        lsn := pg_current_wal_flush_lsn();
        timeline := ('x' || left(pg_walfile_name(lsn), 8))::bit(32)::integer;
    exception when insufficient_privilege or feature_not_supported or undefined_function then
        timeline := null;
    end;
end
$$;

COMMENT ON FUNCTION tenancy.database_identity(OUT system_identifier text, OUT database_oid bigint, OUT database_name text, OUT table_oid bigint, OUT timeline integer, OUT lsn pg_lsn) IS 'Returns the cluster, database, table and timeline of this database, and the flushed log position. A value that the server does not reveal is empty or null, and comparisons use the others.';

CREATE FUNCTION tenancy.end_session(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.sessions as session
     where session.tenant_id = p_tenant_id
       and session.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'session.ended', 'session:' || p_id);
    return true;
end
$$;

COMMENT ON FUNCTION tenancy.end_session(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Ends a session because its person signs out. Returns whether the session existed.';

CREATE FUNCTION tenancy.enrol(p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_id constant uuid := gen_random_uuid();
begin
    insert into tenancy.epochs
           (number, id, installation_id, cause, system_identifier, database_oid, database_name, table_oid, timeline, actor)
    select 1, v_id, v_id, 'enrolled', here.system_identifier, here.database_oid, here.database_name, here.table_oid, here.timeline,
           p_actor
      from tenancy.database_identity() as here
     where not exists (select from tenancy.epochs)
        on conflict (number) do nothing;
end
$$;

COMMENT ON FUNCTION tenancy.enrol(p_actor text) IS 'Begins the first epoch, if there is none. If several processes start at once, one of them does it.';

CREATE FUNCTION tenancy.finish_removal(p_tenant_id uuid, p_tables text[], p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_table text;
    v_more bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- A row that another session adds refers to the tenant, directly or through other rows, and waits for this lock.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id for update;
    foreach v_table in array p_tables loop
        loop
            v_more := tenancy.remove_rows(p_tenant_id, v_table, 1000);
            exit when v_more = 0;
        end loop;
    end loop;
    delete from tenancy.tenants as tenant where tenant.id = p_tenant_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (tenancy.system_tenant_id(), p_actor, 'tenant.removed', 'tenant:' || p_tenant_id);
end
$$;

COMMENT ON FUNCTION tenancy.finish_removal(p_tenant_id uuid, p_tables text[], p_actor text) IS 'Deletes the last rows of a tenant that is being removed, in the order of p_tables, and the tenant itself, in one transaction. The audit log of the system tenant records the id.';

CREATE FUNCTION tenancy.finish_request(p_tenant_id uuid, p_key text, p_status smallint, p_location text, p_body text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    update tenancy.requests as request
       set status = p_status,
           location = p_location,
           body = p_body
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = p_key
       and request.status is null;
    if not found then
        raise exception 'no request with this key was begun' using errcode = 'no_data_found';
    end if;
end
$$;

COMMENT ON FUNCTION tenancy.finish_request(p_tenant_id uuid, p_key text, p_status smallint, p_location text, p_body text) IS 'Records the response of the request that this transaction began.';

CREATE FUNCTION tenancy.key_id_of(p_sealed bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select case when octet_length(p_sealed) >= 29 and get_byte(p_sealed, 0) = 1 then substring(p_sealed from 2 for 4) end
$$;

COMMENT ON FUNCTION tenancy.key_id_of(p_sealed bytea) IS 'Returns the id of the key that sealed a value, from the header of the value (version, four bytes of key id, nonce). Returns null for anything that is not a sealed value.';

CREATE FUNCTION tenancy.limit_idle_time(p_limit text DEFAULT '30s'::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if current_setting('idle_in_transaction_session_timeout') = '0' then
        perform set_config('idle_in_transaction_session_timeout', p_limit, true);
    end if;
end
$$;

COMMENT ON FUNCTION tenancy.limit_idle_time(p_limit text) IS 'Limits idle time inside the current transaction, unless the login has its own limit. Functions that lock rows call it, so that the server ends the transaction of a client that hangs and blocks others.';

CREATE FUNCTION tenancy.limit_provider_account(p_tenant_id uuid, p_id uuid, p_limits jsonb, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_zone constant text := coalesce(p_limits #>> '{hours,time_zone}', p_limits ->> 'time_zone');
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from pg_timezone_names where name = v_zone) and v_zone is not null then
        raise exception 'the database knows no time zone `%`', v_zone
            using errcode = 'invalid_parameter_value', hint = 'Write it like `Europe/Berlin`.';
    end if;
    update tenancy.provider_accounts
       set limits = p_limits
     where tenant_id = p_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (p_tenant_id, p_actor, 'account.limited', 'account:' || p_id, p_limits::text);
    update execution.job_queue as job
       set run_after = v_now,
           waits_for = null
     where job.tenant_id = p_tenant_id
       and job.status = 'queued'
       and job.waits_for in ('rate', 'daily', 'hours')
       and job.run_after > v_now
       and job.run_id in (select run.id
                            from execution.campaign_runs as run
                           where run.tenant_id = p_tenant_id
                             and p_id in (run.provider_account_id, run.failover_account_id));
    return true;
end
$$;

COMMENT ON FUNCTION tenancy.limit_provider_account(p_tenant_id uuid, p_id uuid, p_limits jsonb, p_actor text) IS 'Sets the limits of an account of the current tenant and makes send jobs that waited for the old limits due at once. Returns false if there is no such account.';

CREATE FUNCTION tenancy.make_login_code(p_tenant_id uuid, p_key_id uuid, p_code_hash bytea, p_name text, p_actor text) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_expires_at constant timestamptz := now() + interval '1 minute';
begin
    perform tenancy.require_tenant(p_tenant_id);
    insert into tenancy.login_codes (tenant_id, code_hash, key_id, name, expires_at)
    values (p_tenant_id, p_code_hash, p_key_id, p_name, v_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'login_code.created', 'key:' || p_key_id);
    return v_expires_at;
end
$$;

COMMENT ON FUNCTION tenancy.make_login_code(p_tenant_id uuid, p_key_id uuid, p_code_hash bytea, p_name text, p_actor text) IS 'Stores the hash of a code that opens one session of this API key within a minute. Returns the time at which the code expires. Only members of the owner role may call it.';

CREATE FUNCTION tenancy.mark_process(p_witness_id uuid, p_epoch_id uuid, p_process text, p_timeline integer, p_is_stopping boolean, OUT mark bigint, OUT lsn bigint) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := clock_timestamp();
begin
    -- A crash must not undo a mark that the process has seen, so the commit is synchronous whatever the login is set
    -- to.
    perform tenancy.require_durable_commit();
    delete from tenancy.process_marks as old where old.marked_at < v_now - interval '90 days' and old.witness_id <> p_witness_id;
    insert into tenancy.process_marks as known (witness_id, epoch_id, process, timeline, stopped_at)
    values (p_witness_id, p_epoch_id, p_process, p_timeline, case when p_is_stopping then v_now end)
        on conflict (witness_id) do update
       set mark = known.mark + 1,
           epoch_id = excluded.epoch_id,
           process = excluded.process,
           timeline = excluded.timeline,
           marked_at = v_now,
           stopped_at = excluded.stopped_at
    returning known.mark into mark;
    lsn := ((tenancy.database_identity()).lsn - '0/0'::pg_lsn)::bigint;
end
$$;

COMMENT ON FUNCTION tenancy.mark_process(p_witness_id uuid, p_epoch_id uuid, p_process text, p_timeline integer, p_is_stopping boolean, OUT mark bigint, OUT lsn bigint) IS 'Increments the mark of a process. `p_timeline` is the timeline on which the process found nothing missing. Returns the mark and a log position before the commit of this mark.';

CREATE FUNCTION tenancy.master_key_check() RETURNS bytea
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select sealed_check from tenancy.master_key
$$;

COMMENT ON FUNCTION tenancy.master_key_check() IS 'Returns the check value of the registered master key, or null before a key is registered.';

CREATE FUNCTION tenancy.new_hmac_key(OUT key bytea, OUT inner_pad bytea, OUT outer_pad bytea) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION tenancy.new_hmac_key(OUT key bytea, OUT inner_pad bytea, OUT outer_pad bytea) IS 'Returns a random key of HMAC-SHA256 with its two padded blocks.';

CREATE FUNCTION tenancy.note_new_secret() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    new.secret_set_at := now();
    return new;
end
$$;

COMMENT ON FUNCTION tenancy.note_new_secret() IS 'Trigger function: sets `secret_set_at` to the current time.';

CREATE FUNCTION tenancy.open_session(p_tenant_id uuid, p_id uuid, p_key_id uuid, p_token_hash bytea, p_name text, p_idle_for interval, p_lifetime interval, p_actor text) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_expires_at timestamptz;
begin
    perform tenancy.require_tenant(p_tenant_id);
    -- The lock makes sign-ins with one key wait for each other, so that the limit below holds.
    select least(v_now + p_lifetime, key.expires_at)
      into v_expires_at
      from tenancy.api_keys as key
     where key.tenant_id = p_tenant_id
       and key.id = p_key_id
       and key.revoked_at is null
       and (key.expires_at is null or key.expires_at > v_now)
       for no key update;
    if not found then
        return null;
    end if;
    delete from tenancy.sessions as session
     using (select known.id
              from tenancy.sessions as known
             where known.tenant_id = p_tenant_id
               and known.key_id = p_key_id
             order by known.last_seen_at desc, known.id desc
            offset 99) as surplus
     where session.tenant_id = p_tenant_id
       and session.id = surplus.id;
    insert into tenancy.sessions (id, tenant_id, key_id, token_hash, name, idle_for, expires_at)
    values (p_id, p_tenant_id, p_key_id, p_token_hash, p_name, p_idle_for, v_expires_at);
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'session.opened', 'session:' || p_id);
    return v_expires_at;
end
$$;

COMMENT ON FUNCTION tenancy.open_session(p_tenant_id uuid, p_id uuid, p_key_id uuid, p_token_hash bytea, p_name text, p_idle_for interval, p_lifetime interval, p_actor text) IS 'Stores the hash of a new session of an API key of the tenant. Returns the time at which it expires, at the latest with the key, or null if the key is not active. A key has at most 100 sessions; a further one replaces the one that was seen longest ago.';

CREATE FUNCTION tenancy.protect(p_table regclass, p_tenant_column text DEFAULT 'tenant_id'::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    execute format('alter table %s enable row level security', p_table);
    execute format('alter table %s force row level security', p_table);
    execute format('create policy owner_passes on %s to postrider_owner using (true) with check (true)', p_table);
    -- The sub-select makes Postgres ask once per statement instead of once per row.
    execute format('create policy tenant_sees_its_own on %s for select '
                   'to postrider_app, postrider_worker, postrider_read '
                   'using (%I = (select tenancy.current_tenant_id()))', p_table, p_tenant_column);
end
$$;

COMMENT ON FUNCTION tenancy.protect(p_table regclass, p_tenant_column text) IS 'Enables and forces row-level security on a table and creates its two policies: definer functions of the owner role pass, and other roles see rows of the current tenant. It fails on a table that has these policies.';

CREATE FUNCTION tenancy.prune_requests(p_tenant_id uuid, p_limit integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_limit is null or p_limit < 1 then
        raise exception 'the limit must be at least one' using errcode = 'invalid_parameter_value';
    end if;
    delete from tenancy.requests as request
     using (select old.idempotency_key
              from tenancy.requests as old
             where old.tenant_id = p_tenant_id
               and old.created_at < v_now - interval '24 hours'
             order by old.created_at
             limit p_limit
               for update skip locked) as old
     where request.tenant_id = p_tenant_id
       and request.idempotency_key = old.idempotency_key;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$$;

COMMENT ON FUNCTION tenancy.prune_requests(p_tenant_id uuid, p_limit integer) IS 'Deletes up to p_limit requests of the tenant that are older than a day. It skips locked rows; the next call deletes those.';

CREATE FUNCTION tenancy.prune_sessions(p_tenant_id uuid, p_limit integer DEFAULT 1000) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_sessions bigint;
    v_codes bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if p_limit is null or p_limit < 1 then
        raise exception 'the limit must be at least one' using errcode = 'invalid_parameter_value';
    end if;
    delete from tenancy.sessions as session
     using (select old.id
              from tenancy.sessions as old
             where old.tenant_id = p_tenant_id
               and old.expires_at < v_now
             order by old.expires_at
             limit p_limit
               for update skip locked) as old
     where session.tenant_id = p_tenant_id
       and session.id = old.id;
    get diagnostics v_sessions = row_count;
    delete from tenancy.login_codes as code
     using (select old.code_hash
              from tenancy.login_codes as old
             where old.tenant_id = p_tenant_id
               and old.expires_at < v_now
             order by old.expires_at
             limit p_limit
               for update skip locked) as old
     where code.tenant_id = p_tenant_id
       and code.code_hash = old.code_hash;
    get diagnostics v_codes = row_count;
    return v_sessions + v_codes;
end
$$;

COMMENT ON FUNCTION tenancy.prune_sessions(p_tenant_id uuid, p_limit integer) IS 'Deletes up to p_limit expired sessions and as many expired login codes of the tenant. It skips locked rows; the next call deletes those.';

CREATE FUNCTION tenancy.system_tenant_id() RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN '00000000-0000-0000-0000-000000000001'::uuid;

COMMENT ON FUNCTION tenancy.system_tenant_id() IS 'Returns the id of tenant `system`, which owns the rows that belong to no customer. It has no API keys, is not listed, and cannot be removed.';

CREATE FUNCTION tenancy.publishing_tenant_id() RETURNS uuid
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN COALESCE(CASE WHEN (pg_has_role(SESSION_USER, 'postrider_app'::name, 'member'::text) AND (NOT pg_has_role(SESSION_USER, 'postrider_publish'::name, 'member'::text))) THEN tenancy.current_tenant_id() ELSE tenancy.named_tenant_id() END, tenancy.system_tenant_id());

COMMENT ON FUNCTION tenancy.publishing_tenant_id() IS 'Returns the tenant of an event that this session publishes: the system tenant, if the session names none. A login with postrider_publish names any tenant, because it cannot read anything. A login with postrider_app and without postrider_publish needs the signature.';

CREATE FUNCTION tenancy.read_installation(p_witness_id uuid, p_epoch_id uuid, p_reservation_tenant_ids uuid[], p_reservation_ids uuid[]) RETURNS TABLE(installation_id uuid, epoch_id uuid, epoch_number integer, cause text, began_at timestamp with time zone, refusal text, system_identifier text, database_oid bigint, database_name text, timeline integer, lsn bigint, mark bigint, knows_epoch boolean, has_reservations boolean, unconfirmed text[], last_mark_at timestamp with time zone, all_stopped boolean)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
begin
    return query
        select epoch.installation_id, epoch.id, epoch.number, epoch.cause, epoch.began_at, tenancy.sending_refusal(),
               here.system_identifier, here.database_oid, here.database_name, here.timeline, (here.lsn - '0/0'::pg_lsn)::bigint,
               (select own.mark from tenancy.process_marks as own where own.witness_id = p_witness_id),
               p_epoch_id is null or exists (select from tenancy.epochs as known where known.id = p_epoch_id),
               not exists (select
                             from unnest(p_reservation_tenant_ids, p_reservation_ids) as wanted (tenant_id, id)
                            where not exists (select
                                                from execution.channel_outbox as item
                                               where item.tenant_id = wanted.tenant_id
                                                 and item.id = wanted.id)
                              and not tenancy.was_deleted(wanted.tenant_id, wanted.id)),
               array(select other.process
                       from tenancy.process_marks as other
                      where other.epoch_id = epoch.id
                        and other.witness_id is distinct from p_witness_id
                        and other.stopped_at is null
                        and other.timeline < here.timeline
                        and other.marked_at > (select max(old.marked_at) - interval '2 minutes'
                                                 from tenancy.process_marks as old
                                                where old.epoch_id = epoch.id
                                                  and old.timeline < here.timeline)
                      order by other.process),
               (select max(each.marked_at) from tenancy.process_marks as each where each.epoch_id = epoch.id),
               not exists (select from tenancy.process_marks as each where each.epoch_id = epoch.id and each.stopped_at is null)
          from tenancy.database_identity() as here
               left join (select newest.* from tenancy.epochs as newest order by newest.number desc limit 1) as epoch on true;
end
$$;

COMMENT ON FUNCTION tenancy.read_installation(p_witness_id uuid, p_epoch_id uuid, p_reservation_tenant_ids uuid[], p_reservation_ids uuid[]) IS 'Returns the facts that a process compares with its witness: the newest epoch, the refusal, the log position, its own mark, whether the epoch and the reservations that it knows exist, and the processes that have not confirmed the current timeline.';

CREATE FUNCTION tenancy.read_overview(p_tenant_id uuid, p_stuck_after integer, p_without_person text[]) RETURNS TABLE(at timestamp with time zone, phases_not_started bigint, phases_in_progress bigint, phases_paused bigint, phases_failed bigint, phases_oldest_failed_seconds double precision, items_in_flight bigint, items_begun bigint, items_in_doubt bigint, items_in_doubt_for_person bigint, items_oldest_doubt_seconds double precision, doubted_campaigns uuid[], doubts_by_campaign bigint[], jobs_waiting bigint, jobs_locked bigint, jobs_oldest_lock_seconds double precision, jobs_put_off bigint, accounts_total bigint, accounts_circuit_open bigint, accounts_waiting bigint, replies_pending bigint, replies_due bigint, replies_retrying bigint, replies_in_doubt bigint, replies_oldest_seconds double precision, replies_unsent bigint, replies_dead bigint, replies_oldest_dead_seconds double precision, messages_unfinished bigint, messages_dispatch_failed bigint, messages_oldest_failed_seconds double precision, events_pending bigint, events_stuck bigint, events_oldest_ready_seconds double precision, job_runs_running bigint, job_runs_waiting bigint, job_runs_retry_pending bigint, job_runs_unfinished bigint, job_runs_failed_24h bigint, job_runs_retried_24h bigint, job_runs_total_24h bigint, job_runs_long_running bigint, schedules_enabled bigint, schedules_overdue_seconds double precision, schedules_firings_waiting bigint, sync_errors bigint, oldest_sync_error_seconds double precision, alerts bigint, decision_cards bigint, oldest_decision_card_seconds double precision, newest_run timestamp with time zone, newest_campaign timestamp with time zone, newest_message timestamp with time zone, newest_event bigint, newest_job_run timestamp with time zone, account_changed timestamp with time zone, schedule_changed timestamp with time zone, alert_changed timestamp with time zone, card_changed timestamp with time zone)
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
#variable_conflict use_column
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    return query
        with doubt as materialized (
            select doubt.campaign_id,
                   doubt.in_doubt_since,
                   doubt.is_for_person or not doubt.provider = any (p_without_person) as is_for_person
              from execution.doubts as doubt
             where doubt.tenant_id = p_tenant_id
             limit 10000
        ), by_campaign as (
            select doubt.campaign_id, count(*) as doubts
              from doubt
             group by doubt.campaign_id
             order by count(*) desc, doubt.campaign_id
             limit 50
        ), begun as (
            select item.status, item.in_doubt_since, item.reserved_by
              from (select job.id
                      from execution.job_queue as job
                     where job.tenant_id = p_tenant_id
                       and job.status = 'locked'
                     order by job.locked_at
                     limit 10000) as job
                   -- One index lookup per job: a join could read every item of the tenant.
                   cross join lateral (
                       select item.status, item.in_doubt_since, item.reserved_by
                         from execution.channel_outbox as item
                        where item.tenant_id = p_tenant_id
                          and item.job_id = job.id
                       offset 0
                   ) as item
             limit 10000
        ), reply as (
            select reply.status, reply.next_attempt_at, reply.attempt_count, reply.in_doubt_since, reply.created_at
              from channels.channel_outbox as reply
             where reply.tenant_id = p_tenant_id
               and reply.status in ('pending', 'sending')
             order by reply.account_id
             limit 10000
        ), rules as (
            -- The first schedule of detect-alerts sets when a job run takes too long.
            select v_now - interval '1 minute' * least(coalesce(
                       (select case when jsonb_typeof(schedule.input -> 'running_minutes_max') = 'number'
                                    then (schedule.input ->> 'running_minutes_max')::double precision
                               end
                          from jobs.schedules as schedule
                         where schedule.tenant_id = p_tenant_id
                           and schedule.function_name = 'detect-alerts'
                         order by schedule.id
                         limit 1), 30), 100000000) as long_before
        ), recent_run as (
            select run.status, run.retry_count
              from jobs.job_runs as run
             where run.tenant_id = p_tenant_id
               and run.created_at > v_now - interval '24 hours'
             order by run.created_at desc
             limit 10000
        ), held_run as (
            select run.started_at
              from jobs.job_runs as run
             where run.tenant_id = p_tenant_id
               and run.heartbeat_at is not null
             order by run.heartbeat_at
             limit 10000
        ), waiting_run as (
            select run.status, run.started_at
              from jobs.job_runs as run
             where run.tenant_id = p_tenant_id
               and ((run.status = 'running' and run.locked_by is null) or run.retry_at is not null)
             order by coalesce(run.retry_at, run.started_at)
             limit 10000
        ), schedule as (
            select schedule.enabled, schedule.next_fire_at, schedule.updated_at
              from jobs.schedules as schedule
             where schedule.tenant_id = p_tenant_id
             limit 10000
        ), alert as (
            select alert.updated_at
              from jobs.alert_instances as alert
             where alert.tenant_id = p_tenant_id
               and alert.status in ('active', 'open', 'triggered')
             limit 10000
        ), card as (
            select card.created_at, card.updated_at
              from jobs.decision_cards as card
             where card.tenant_id = p_tenant_id
               and card.status in ('OPEN', 'IN_PROGRESS')
             limit 10000
        ), account as (
            select account.updated_at
              from tenancy.provider_accounts as account
             where account.tenant_id = p_tenant_id
             limit 10000
        ), state as (
            select state.circuit_open_until, state.wait_until
              from execution.account_states as state
             where state.tenant_id = p_tenant_id
             limit 10000
        )
        select v_now,

               (select count(*)
                  from (select from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id and phase.status = 'not_started' limit 10000) as counted),
               (select count(*)
                  from (select from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id and phase.status = 'in_progress' limit 10000) as counted),
               (select count(*)
                  from (select from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id and phase.status = 'paused' limit 10000) as counted),
               failed.phases,
               failed.oldest_seconds,

               items.in_flight,
               items.counted,
               doubts.counted,
               doubts.for_person,
               doubts.oldest_seconds,
               array(select by_campaign.campaign_id from by_campaign),
               array(select by_campaign.doubts from by_campaign),

               (select count(*)
                  from (select from execution.job_queue as job
                         where job.tenant_id = p_tenant_id and job.status = 'queued' and job.run_after <= v_now
                         order by job.run_after
                         limit 10000) as counted),
               locked.jobs,
               locked.oldest_seconds,
               (select count(*)
                  from (select from execution.job_queue as job
                         where job.tenant_id = p_tenant_id and job.status = 'queued' and job.run_after > v_now
                         order by job.run_after
                         limit 10000) as counted)
               + (select count(*)
                    from (select from execution.job_queue as job
                           where job.tenant_id = p_tenant_id and job.status = 'failed'
                           order by job.run_after
                           limit 10000) as counted),

               (select count(*) from account),
               (select count(*) from state where state.circuit_open_until is not null),
               (select count(*) from state where state.wait_until > v_now),

               replies.pending,
               replies.due,
               replies.retrying,
               replies.in_doubt,
               replies.oldest_seconds,
               replies.counted,
               (select count(*)
                  from (select from channels.channel_outbox as reply
                         where reply.tenant_id = p_tenant_id and reply.status = 'dead'
                         order by reply.updated_at
                         limit 10000) as counted),
               (select extract(epoch from v_now - reply.updated_at)::double precision
                  from channels.channel_outbox as reply
                 where reply.tenant_id = p_tenant_id
                   and reply.status = 'dead'
                 order by reply.updated_at
                 limit 1),

               (select count(*)
                  from (select from channels.channel_messages as message
                         where message.tenant_id = p_tenant_id and message.leased_until is not null
                         order by message.leased_until
                         limit 10000) as counted),
               (select count(*)
                  from (select from channels.channel_messages as message
                         where message.tenant_id = p_tenant_id and message.status = 'dispatch_failed'
                         order by message.id
                         limit 10000) as counted),
               (select extract(epoch from v_now - message.created_at)::double precision
                  from channels.channel_messages as message
                 where message.tenant_id = p_tenant_id
                   and message.status = 'dispatch_failed'
                 order by message.id
                 limit 1),

               (select count(*)
                  from (select from m10_recovery.outbox as event
                         where event.tenant_id = p_tenant_id
                           and event.processed_at is null
                         order by coalesce(event.process_after, '-infinity'::timestamptz)
                         limit 10000) as counted),
               (select count(*)
                  from (select from m10_recovery.outbox as event
                         where event.tenant_id = p_tenant_id
                           and event.processed_at is null
                           and event.retry_count > 0
                           and event.retry_count > p_stuck_after
                         order by event.retry_count
                         limit 10000) as counted),
               (select extract(epoch from v_now - coalesce(event.process_after, event.created_at))::double precision
                  from m10_recovery.outbox as event
                 where event.tenant_id = p_tenant_id
                   and event.processed_at is null
                   and coalesce(event.process_after, '-infinity'::timestamptz) <= v_now
                   and (event.claimed_at is null or event.claimed_at < v_now - interval '5 minutes')
                 order by coalesce(event.process_after, '-infinity'::timestamptz), event.id
                 limit 1),

               (select count(*) from held_run),
               (select count(*) from waiting_run where waiting_run.status = 'running'),
               (select count(*) from waiting_run where waiting_run.status = 'failed'),
               (select count(*) from waiting_run),
               recent.failed,
               recent.retried,
               recent.total,
               (select count(*) from held_run, rules where held_run.started_at < rules.long_before)
               + (select count(*) from waiting_run, rules
                   where waiting_run.status = 'running'
                     and waiting_run.started_at < rules.long_before),

               (select count(*) from schedule where schedule.enabled),
               (select extract(epoch from v_now - min(schedule.next_fire_at))::double precision
                  from schedule
                 where schedule.enabled
                   and schedule.next_fire_at <= v_now),
               (select count(*)
                  from (select from jobs.schedule_firings as firing
                         where firing.tenant_id = p_tenant_id and firing.outcome = 'waiting'
                         order by firing.looked_at
                         limit 10000) as counted),

               (select count(*)
                  from (select from jobs.sync_errors as error
                         where error.tenant_id = p_tenant_id and not error.is_resolved
                         order by error.id
                         limit 10000) as counted),
               (select extract(epoch from v_now - error.created_at)::double precision
                  from jobs.sync_errors as error
                 where error.tenant_id = p_tenant_id
                   and not error.is_resolved
                 order by error.id
                 limit 1),
               (select count(*) from alert),
               cards.counted,
               cards.oldest_seconds,

               -- The newest row of each list. A reader of the stream is told that a list has changed when one of these has.
               (select run.created_at
                  from execution.campaign_runs as run
                 where run.tenant_id = p_tenant_id
                 order by run.created_at desc, run.id desc
                 limit 1),
               (select campaign.created_at
                  from execution.campaigns as campaign
                 where campaign.tenant_id = p_tenant_id
                 order by campaign.created_at desc, campaign.id desc
                 limit 1),
               (select message.created_at
                  from channels.channel_messages as message
                 where message.tenant_id = p_tenant_id
                 order by message.created_at desc
                 limit 1),
               (select event.id
                  from m10_recovery.outbox as event
                 where event.tenant_id = p_tenant_id
                 order by event.id desc
                 limit 1),
               (select run.created_at
                  from jobs.job_runs as run
                 where run.tenant_id = p_tenant_id
                 order by run.created_at desc
                 limit 1),
               (select max(account.updated_at) from account),
               (select max(schedule.updated_at) from schedule),
               (select max(alert.updated_at) from alert),
               cards.changed
          from (select count(*) as phases,
                       extract(epoch from v_now - min(phase.updated_at))::double precision as oldest_seconds
                  from (select phase.updated_at
                          from execution.campaign_phases as phase
                         where phase.tenant_id = p_tenant_id
                           and phase.status = 'failed'
                         limit 10000) as phase) as failed,
               (select count(*) filter (where begun.status = 'queued' and begun.in_doubt_since is null and begun.reserved_by is not null)
                           as in_flight,
                       count(*) as counted
                  from begun) as items,
               (select count(*) as counted,
                       count(*) filter (where doubt.is_for_person) as for_person,
                       extract(epoch from v_now - min(doubt.in_doubt_since))::double precision as oldest_seconds
                  from doubt) as doubts,
               (select count(*) as jobs,
                       extract(epoch from v_now - min(job.locked_at))::double precision as oldest_seconds
                  from (select job.locked_at
                          from execution.job_queue as job
                         where job.tenant_id = p_tenant_id
                           and job.status = 'locked'
                         order by job.locked_at
                         limit 10000) as job) as locked,
               (select count(*) filter (where reply.status = 'pending') as pending,
                       count(*) filter (where reply.status = 'pending' and reply.next_attempt_at <= v_now) as due,
                       count(*) filter (where reply.attempt_count > 0) as retrying,
                       count(*) filter (where reply.in_doubt_since is not null) as in_doubt,
                       extract(epoch from v_now - min(reply.created_at))::double precision as oldest_seconds,
                       count(*) as counted
                  from reply) as replies,
               (select count(*) filter (where recent_run.status = 'failed') as failed,
                       count(*) filter (where recent_run.retry_count > 0) as retried,
                       count(*) as total
                  from recent_run) as recent,
               (select count(*) as counted,
                       extract(epoch from v_now - min(card.created_at))::double precision as oldest_seconds,
                       max(card.updated_at) as changed
                  from card) as cards;
end
$$;

COMMENT ON FUNCTION tenancy.read_overview(p_tenant_id uuid, p_stuck_after integer, p_without_person text[]) IS 'Returns the numbers of a tenant''s overview in one row. No number reads more than 10,000 rows: it stops there. Ages are in seconds, and null where nothing waits. An event with more failures than p_stuck_after is stuck; doubts at the providers of p_without_person need no person. The columns from newest_run on show whether a list has changed.';

CREATE FUNCTION tenancy.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;

COMMENT ON FUNCTION tenancy.refuse_change() IS 'Trigger function: refuses the change. The WHEN clause of the trigger states the forbidden change, and the trigger argument is the reason in the error.';

CREATE FUNCTION tenancy.refuse_other_master_key() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if tenancy.key_id_of(new.sealed_secret) <> tenancy.key_id_of(tenancy.sealing_key_check()) then
        raise exception 'the secret is sealed under another master key than the secrets of this installation'
            using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name,
                  hint = 'Start this process with the master key that is in use now.';
    end if;
    return new;
end
$$;

COMMENT ON FUNCTION tenancy.refuse_other_master_key() IS 'Trigger function: refuses a secret that is sealed under another key than the registered one, so that a process still running with the old key cannot store a secret that other processes cannot open.';

CREATE FUNCTION tenancy.refuse_removal_with_events() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if exists (select from m10_recovery.outbox as event where event.tenant_id = old.id) then
        raise exception 'tenant % has events', old.id
            using errcode = 'foreign_key_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
    end if;
    return old;
end
$$;

COMMENT ON FUNCTION tenancy.refuse_removal_with_events() IS 'Trigger function: refuses to remove a tenant that has events. It stands in for a foreign key of the outbox.';

CREATE FUNCTION tenancy.refuse_unless_erased_or_removed() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_old jsonb;
    v_new jsonb;
    v_is_erased boolean;
begin
    if tg_op = 'DELETE' then
        if exists (select from tenancy.tenants as tenant where tenant.id = old.tenant_id and tenant.removing_since is not null) then
            return old;
        end if;
    elsif exists (select from execution.erasures as erasure where erasure.tenant_id = old.tenant_id and erasure.at = now()) then
        v_old := to_jsonb(old);
        v_new := to_jsonb(new);
        select coalesce(bool_and(v_new -> erasable.name = v_old -> erasable.name
                                 or v_new -> erasable.name in ('null', '"erased"', '{}')), false)
          into v_is_erased
          from unnest(tg_argv[1:]) as erasable (name);
        if v_is_erased and v_new - tg_argv[1:] = v_old - tg_argv[1:] then
            return new;
        end if;
    end if;
    raise exception '%.%: %', tg_table_schema, tg_table_name, tg_argv[0]
        using errcode = 'check_violation', constraint = tg_name, schema = tg_table_schema, table = tg_table_name;
end
$$;

COMMENT ON FUNCTION tenancy.refuse_unless_erased_or_removed() IS 'Trigger function: refuses the change, as refuse_change does, with two exceptions. A row may be deleted while its tenant is being removed. And the transaction that records an erasure of the tenant may set the columns that follow the reason in the trigger arguments to null, to `erased` or to an empty object.';

CREATE FUNCTION tenancy.register_master_key(p_sealed_check bytea) RETURNS bytea
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_sealed_check bytea;
begin
    if tenancy.key_id_of(p_sealed_check) is null then
        raise exception 'p_sealed_check must be a sealed value' using errcode = 'invalid_parameter_value';
    end if;
    insert into tenancy.master_key (sealed_check) values (p_sealed_check) on conflict do nothing;
    -- This statement has a new snapshot, which shows a key that another process registered meanwhile.
    select sealed_check into strict v_sealed_check from tenancy.master_key;
    return v_sealed_check;
end
$$;

COMMENT ON FUNCTION tenancy.register_master_key(p_sealed_check bytea) IS 'Registers a master key if none is registered, and returns the check value of the registered key.';

CREATE FUNCTION tenancy.remove_provider_account(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.provider_accounts
     where tenant_id = p_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'account.removed', 'account:' || p_id);
    return true;
end
$$;

COMMENT ON FUNCTION tenancy.remove_provider_account(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Removes an account of the tenant. Returns false if there is no such account.';

CREATE FUNCTION tenancy.remove_rows(p_tenant_id uuid, p_table text, p_limit integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
declare
    v_removed bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    if not exists (select from tenancy.tenant_tables() as known where known.name = p_table) then
        raise exception '% is not a table with a tenant_id', p_table using errcode = 'invalid_parameter_value';
    end if;
    -- The lock keeps the tenant's row until the rows are removed.
    perform from tenancy.tenants as tenant where tenant.id = p_tenant_id and tenant.removing_since is not null for key share;
    if not found then
        raise exception 'tenant % is not being removed', p_tenant_id using errcode = 'invalid_parameter_value';
    end if;
    execute format('delete from %s where tenant_id = $1 and ctid = any (array(select ctid from %s where tenant_id = $1 limit $2))',
                   p_table::regclass, p_table::regclass)
      using p_tenant_id, p_limit;
    get diagnostics v_removed = row_count;
    return v_removed;
end
$_$;

COMMENT ON FUNCTION tenancy.remove_rows(p_tenant_id uuid, p_table text, p_limit integer) IS 'Deletes up to p_limit rows of a tenant that is being removed from one table. Returns the number of deleted rows.';

CREATE FUNCTION tenancy.replace_master_key(p_sealed_check bytea, p_action text, p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    if tenancy.key_id_of(p_sealed_check) is null then
        raise exception 'p_sealed_check must be a sealed value' using errcode = 'invalid_parameter_value';
    end if;
    perform from tenancy.master_key for update;
    insert into tenancy.master_key (sealed_check)
    values (p_sealed_check)
    on conflict (is_the_only_row) do update set sealed_check = excluded.sealed_check, changed_at = v_now;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (tenancy.system_tenant_id(), p_actor, p_action, 'master_key:' || encode(tenancy.key_id_of(p_sealed_check), 'hex'));
end
$$;

COMMENT ON FUNCTION tenancy.replace_master_key(p_sealed_check bytea, p_action text, p_actor text) IS 'Replaces the registered master key. From this call to the end of the transaction no other transaction can seal a secret. Only members of the owner role may call it.';

CREATE FUNCTION tenancy.require_durable_commit() RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if current_setting('synchronous_commit') in ('off', 'local') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end
$$;

COMMENT ON FUNCTION tenancy.require_durable_commit() IS 'Makes the commit of the current transaction survive a crash, whatever synchronous_commit of the login is. Functions call it whose record decides whether a provider may be called.';

CREATE FUNCTION tenancy.require_sending_allowed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_refusal constant text := tenancy.sending_refusal();
    v_fence constant text := nullif(current_setting('app.fence', true), '');
begin
    if v_refusal is not null then
        raise exception 'restored copy: sending waits for adopt: %', v_refusal
            using errcode = 'PR002', hint = 'Run `postrider adopt`.';
    end if;
    if v_fence is not null
       and v_fence <> coalesce((select epoch.id::text from tenancy.epochs as epoch order by epoch.number desc limit 1), '')
                      || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
    then
        raise exception 'the database changed its timeline or its epoch since this process last looked'
            using errcode = 'PR003', hint = 'The process looks again, and goes on when nothing is missing.';
    end if;
    return null;
end
$$;

COMMENT ON FUNCTION tenancy.require_sending_allowed() IS 'Trigger function: refuses reservations on a restored copy, for every client. If `app.fence` is set, it also refuses reservations of a process that has not compared the current epoch and timeline with its witness.';

CREATE FUNCTION tenancy.require_tenant(p_tenant_id uuid) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION tenancy.require_tenant(p_tenant_id uuid) IS 'Refuses a tenant other than that of the transaction. Without a tenant in the transaction, members of postrider_worker and postrider_owner may act for any. Entry functions call it with their first argument.';

CREATE FUNCTION tenancy.required_tenant_id() RETURNS uuid
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION tenancy.required_tenant_id() IS 'Returns the tenant of the transaction, or raises an error that explains how to set it.';

CREATE FUNCTION tenancy.reseal(p_kinds text[], p_tenant_ids uuid[], p_ids uuid[], p_old bytea[], p_new bytea[]) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_number bigint := 0::bigint;
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
                -- The trigger provider_accounts_secrets_have_a_time has set this to now.
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

COMMENT ON FUNCTION tenancy.reseal(p_kinds text[], p_tenant_ids uuid[], p_ids uuid[], p_old bytea[], p_new bytea[]) IS 'Replaces sealed values by newly sealed ones, where the old ones are still present, and returns their number. The plain secrets are the same, so `secret_set_at` stays. Only members of the owner role may call it.';

CREATE FUNCTION tenancy.revoke_api_key(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update tenancy.api_keys
       set revoked_at = v_now
     where tenant_id = p_tenant_id
       and id = p_id
       and revoked_at is null;
    if found then
        insert into tenancy.audit_log (tenant_id, actor, action, subject)
        values (p_tenant_id, p_actor, 'key.revoked', 'key:' || p_id);
    end if;
    return exists (select from tenancy.api_keys where tenant_id = p_tenant_id and id = p_id);
end
$$;

COMMENT ON FUNCTION tenancy.revoke_api_key(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Revokes an API key of the tenant. Returns whether the key exists; revoking it again changes nothing.';

CREATE FUNCTION tenancy.revoke_session(p_tenant_id uuid, p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.sessions as session
     where session.tenant_id = p_tenant_id
       and session.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'session.revoked', 'session:' || p_id);
    return true;
end
$$;

COMMENT ON FUNCTION tenancy.revoke_session(p_tenant_id uuid, p_id uuid, p_actor text) IS 'Ends a session because an admin revokes it. Returns whether the session existed.';

CREATE FUNCTION tenancy.rotate_context_key(p_actor text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform tenancy.add_context_key();
    delete from tenancy.context_keys
     where id not in (select newest.id from tenancy.context_keys as newest order by newest.id desc limit 2);
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (tenancy.system_tenant_id(), p_actor, 'context_key.rotated', 'installation');
end
$$;

COMMENT ON FUNCTION tenancy.rotate_context_key(p_actor text) IS 'Adds a context key and removes all but the newest two, so signatures under the previous key stay valid until the next rotation. Only members of the owner role may call it.';

CREATE FUNCTION tenancy.rotate_provider_account(p_tenant_id uuid, p_id uuid, p_sealed_secret bytea, p_actor text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
begin
    perform tenancy.require_tenant(p_tenant_id);
    update tenancy.provider_accounts
       set sealed_secret = p_sealed_secret,
           updated_at = v_now
     where tenant_id = p_tenant_id
       and id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (p_tenant_id, p_actor, 'account.rotated', 'account:' || p_id);
    perform execution.try_new_secret(p_tenant_id, p_id);
    return true;
end
$$;

COMMENT ON FUNCTION tenancy.rotate_provider_account(p_tenant_id uuid, p_id uuid, p_sealed_secret bytea, p_actor text) IS 'Replaces the sealed secret of an account of the tenant, and half opens its circuit. Returns false if there is no such account.';

CREATE FUNCTION tenancy.sealed_keys() RETURNS TABLE(key_id bytea, number bigint, tenant_id uuid, id uuid, sealed_secret bytea)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select distinct on (tenancy.key_id_of(value.sealed_secret))
           tenancy.key_id_of(value.sealed_secret),
           count(*) over (partition by tenancy.key_id_of(value.sealed_secret)),
           value.tenant_id, value.id, value.sealed_secret
      from tenancy.sealed_values() as value
     where tenancy.key_id_of(value.sealed_secret) is not null
     order by tenancy.key_id_of(value.sealed_secret), value.id
$$;

COMMENT ON FUNCTION tenancy.sealed_keys() IS 'Counts the values sealed under each key, with one value of each.';

CREATE FUNCTION tenancy.sealed_values() RETURNS TABLE(kind text, tenant_id uuid, id uuid, sealed_secret bytea)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

COMMENT ON FUNCTION tenancy.sealed_values() IS 'Returns every sealed value of the installation. A test compares this list with the columns called `sealed_secret`.';

CREATE FUNCTION tenancy.sealing_key_check() RETURNS bytea
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select sealed_check from tenancy.master_key for key share
$$;

COMMENT ON FUNCTION tenancy.sealing_key_check() IS 'Returns the check value of the master key and locks it against rotation until the end of the transaction, for a transaction that is about to seal a secret.';

CREATE FUNCTION tenancy.send_hint(p_channel text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform pg_notify(p_channel, '');
end
$$;

COMMENT ON FUNCTION tenancy.send_hint(p_channel text) IS 'Wakes the processes that listen on a channel, once the current transaction commits. The only function that notifies, so that an installation on which NOTIFY does not reach its listeners can replace it; every listener also polls.';

CREATE FUNCTION tenancy.sending_refusal() RETURNS text
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_epoch record;
    v_system text;
    v_database bigint;
begin
    select epoch.system_identifier, epoch.database_oid, epoch.database_name, epoch.table_oid, epoch.suspicion
      into v_epoch
      from tenancy.epochs as epoch
     order by epoch.number desc
     limit 1;
    if not found then
        return null;
    end if;
    if v_epoch.suspicion is not null then
        return v_epoch.suspicion;
    end if;
    if v_epoch.system_identifier <> '' then
        select control.system_identifier::text into v_system from pg_control_system() as control;
        if v_system <> v_epoch.system_identifier then
            return format('the database was recorded in cluster %s, and this is cluster %s', v_epoch.system_identifier, v_system);
        end if;
    end if;
    select database.oid::bigint into v_database from pg_database as database where database.datname = current_database();
    if v_database <> v_epoch.database_oid then
        return format('it was recorded as database `%s` (oid %s), and this is database `%s` (oid %s)', v_epoch.database_name,
                      v_epoch.database_oid, current_database(), v_database);
    end if;
    if v_epoch.table_oid <> 'tenancy.epochs'::regclass::oid::bigint then
        return 'its tables were created again after it was recorded';
    end if;
    return null;
end
$$;

COMMENT ON FUNCTION tenancy.sending_refusal() IS 'Returns the reason why this database may not send, or null if sending is allowed. A database without an epoch may send: no process has sent from it yet.';

CREATE FUNCTION tenancy.skip_firings(p_tenant_id uuid, p_schedule_id uuid, p_due timestamp with time zone, p_version integer, p_skipped_at timestamp with time zone, p_next_fire_at timestamp with time zone) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    if jobs.fire_schedule(p_tenant_id, p_schedule_id, p_due, p_version, '{}', '{}', p_skipped_at,
                          'adopted after a restore: the original may have fired it', p_next_fire_at) is null
    then
        return false;
    end if;
    update tenancy.epochs as epoch
       set firings_skipped = epoch.firings_skipped + 1
     where epoch.number = (select max(newest.number) from tenancy.epochs as newest);
    return true;
end
$$;

COMMENT ON FUNCTION tenancy.skip_firings(p_tenant_id uuid, p_schedule_id uuid, p_due timestamp with time zone, p_version integer, p_skipped_at timestamp with time zone, p_next_fire_at timestamp with time zone) IS 'Moves a schedule past the times at which the original may have fired it. Returns false if the schedule changed meanwhile. Only members of the owner role may call it.';

CREATE FUNCTION tenancy.suspect(p_epoch_id uuid, p_reason text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    update tenancy.epochs as epoch
       set suspected_at = now(),
           suspicion = left(p_reason, 2000)
     where epoch.id = p_epoch_id
       and epoch.suspected_at is null
$$;

COMMENT ON FUNCTION tenancy.suspect(p_epoch_id uuid, p_reason text) IS 'Records that the database lacks something that a process saw committed. From then on no process sends before the database is adopted.';

CREATE FUNCTION tenancy.tenant_tables() RETURNS TABLE(name text, referenced_by text[])
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select class.oid::regclass::text,
           array(select distinct fk.conrelid::regclass::text
                   from pg_constraint as fk
                  where fk.contype = 'f'
                    and fk.confrelid = class.oid
                    and fk.conrelid <> class.oid)
      from pg_class as class
     where class.relkind in ('r', 'p')
       and class.relnamespace in (select schema.oid from pg_namespace as schema where schema.nspowner = 'postrider_owner'::regrole)
       and exists (select from pg_attribute as tenant
                    where tenant.attrelid = class.oid and tenant.attname = 'tenant_id' and not tenant.attisdropped)
     order by 1
$$;

COMMENT ON FUNCTION tenancy.tenant_tables() IS 'Returns the tables that have a tenant_id, as the catalog knows them, with the tables whose foreign keys refer to them.';

CREATE FUNCTION tenancy.tenants_with_old_requests() RETURNS SETOF uuid
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select
                     from tenancy.requests as request
                    where request.tenant_id = tenant.id
                      and request.created_at < now() - interval '24 hours')
$$;

COMMENT ON FUNCTION tenancy.tenants_with_old_requests() IS 'Returns the tenants that have requests older than a day. Retention calls prune_requests for each of them.';

CREATE FUNCTION tenancy.tenants_with_old_sessions() RETURNS SETOF uuid
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    AS $$
    select tenant.id
      from tenancy.tenants as tenant
     where exists (select
                     from tenancy.sessions as session
                    where session.tenant_id = tenant.id
                      and session.expires_at < now())
        or exists (select
                     from tenancy.login_codes as code
                    where code.tenant_id = tenant.id
                      and code.expires_at < now())
$$;

COMMENT ON FUNCTION tenancy.tenants_with_old_sessions() IS 'Returns the tenants that have expired sessions or login codes. Retention calls prune_sessions for each of them.';

CREATE FUNCTION tenancy.use_login_code(p_tenant_id uuid, p_code_hash bytea) RETURNS TABLE(key_id uuid, role text, name text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    v_now constant timestamptz := now();
    v_key_id uuid;
    v_name text;
begin
    perform tenancy.require_tenant(p_tenant_id);
    delete from tenancy.login_codes as code
     where code.tenant_id = p_tenant_id
       and code.code_hash = p_code_hash
       and code.expires_at > v_now
    returning code.key_id, code.name into v_key_id, v_name;
    return query
        select key.id, key.role, v_name
          from tenancy.api_keys as key
         where key.tenant_id = p_tenant_id
           and key.id = v_key_id
           and key.revoked_at is null
           and (key.expires_at is null or key.expires_at > v_now);
end
$$;

COMMENT ON FUNCTION tenancy.use_login_code(p_tenant_id uuid, p_code_hash bytea) IS 'Deletes the login code with this hash and returns its API key, with the name for the session. Returns no row if the code is unknown, was used, or has expired, or if the key is not active.';

CREATE FUNCTION tenancy.was_deleted(p_tenant_id uuid, p_item_id uuid) RETURNS boolean
    LANGUAGE sql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    select exists (select
                     from tenancy.audit_log as line
                    where line.tenant_id = tenancy.system_tenant_id()
                      and line.subject = 'tenant:' || p_tenant_id
                      and line.action = 'tenant.removed')
           or exists (select
                        from execution.run_archives as archive
                             join execution.campaign_runs as run
                               on run.tenant_id = archive.tenant_id and run.id = archive.run_id
                       where archive.tenant_id = p_tenant_id
                         and run.finished_at + interval '1 hour'
                             > to_timestamp(('x' || left(replace(p_item_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0))
$$;

COMMENT ON FUNCTION tenancy.was_deleted(p_tenant_id uuid, p_item_id uuid) IS 'Whether the database may lack this item because its run was archived or its tenant removed, and not because the database is a restored copy. Clocks may differ by an hour.';

CREATE TABLE channels.channel_executors (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    account_id uuid,
    kind text NOT NULL,
    url text,
    timeout_seconds integer NOT NULL,
    sealed_secret bytea,
    required_role text NOT NULL,
    sentinel jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT channel_executors_http_has_an_address CHECK (((kind = 'http'::text) = (url IS NOT NULL))),
    CONSTRAINT channel_executors_kind_check CHECK ((kind = ANY (ARRAY['echo'::text, 'http'::text]))),
    CONSTRAINT channel_executors_requests_are_signed CHECK (((sealed_secret IS NOT NULL) OR ((kind = 'echo'::text) AND (NOT (sentinel ? 'url'::text))))),
    CONSTRAINT channel_executors_role_check CHECK ((required_role = ANY (ARRAY['viewer'::text, 'operator'::text, 'admin'::text]))),
    CONSTRAINT channel_executors_sentinel_is_an_object CHECK ((jsonb_typeof(sentinel) = 'object'::text)),
    CONSTRAINT channel_executors_timeout_is_bounded CHECK (((timeout_seconds >= 1) AND (timeout_seconds <= 60)))
);
ALTER TABLE ONLY channels.channel_executors ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY channels.channel_executors FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE channels.channel_executors IS 'The executor of an account''s messages, or with a null account the executor of all accounts without one of their own. The secret is sealed to the row.';

CREATE TABLE channels.channel_links (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    account_id uuid NOT NULL,
    sender_id text NOT NULL,
    user_id text NOT NULL,
    role text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT channel_links_names_are_given CHECK (((btrim(sender_id) <> ''::text) AND (octet_length(sender_id) <= 255) AND (btrim(user_id) <> ''::text) AND (octet_length(user_id) <= 255))),
    CONSTRAINT channel_links_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'operator'::text, 'admin'::text])))
);
ALTER TABLE ONLY channels.channel_links ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY channels.channel_links FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE channels.channel_links IS 'The user and role of a sender at one account. The same sender id at another account may be a different person.';

CREATE TABLE channels.channel_messages (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    account_id uuid NOT NULL,
    provider text NOT NULL,
    provider_message_id text NOT NULL,
    sender_id text NOT NULL,
    recipient_id text NOT NULL,
    thread text,
    text text NOT NULL,
    status text DEFAULT 'accepted'::text NOT NULL,
    user_id text,
    role text,
    reply jsonb,
    last_error text,
    correlation_id uuid NOT NULL,
    deliveries integer DEFAULT 1 NOT NULL,
    executions integer DEFAULT 0 NOT NULL,
    is_executing boolean DEFAULT false NOT NULL,
    leased_until timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT channel_messages_executions_are_leased CHECK (((NOT is_executing) OR (leased_until IS NOT NULL))),
    CONSTRAINT channel_messages_names_are_given CHECK (((btrim(provider_message_id) <> ''::text) AND (octet_length(provider_message_id) <= 512) AND (btrim(sender_id) <> ''::text) AND (octet_length(sender_id) <= 255) AND (btrim(recipient_id) <> ''::text) AND (octet_length(recipient_id) <= 255) AND (octet_length(thread) <= 512))),
    CONSTRAINT channel_messages_only_failures_keep_a_reply CHECK (((reply IS NULL) OR (status = 'dispatch_failed'::text))),
    CONSTRAINT channel_messages_only_open_ones_are_leased CHECK (((leased_until IS NULL) OR (status = ANY (ARRAY['accepted'::text, 'dispatch_failed'::text])))),
    CONSTRAINT channel_messages_status_check CHECK ((status = ANY (ARRAY['accepted'::text, 'executed'::text, 'denied_unlinked'::text, 'denied_rbac'::text, 'denied_sentinel'::text, 'dispatch_failed'::text]))),
    CONSTRAINT channel_messages_text_is_bounded CHECK ((octet_length(text) <= 65536))
)
WITH (fillfactor='70');
ALTER TABLE ONLY channels.channel_messages ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY channels.channel_messages FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE channels.channel_messages IS 'Messages that providers delivered, one row per provider message id. A message is executed if and only if its reply is in channels.channel_outbox. A reply that could not be enqueued is kept in `reply`.';

CREATE TABLE channels.channel_outbox (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    channel_message_id uuid NOT NULL,
    account_id uuid NOT NULL,
    provider text NOT NULL,
    recipient_id text NOT NULL,
    payload jsonb NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    attempt_count integer DEFAULT 0 NOT NULL,
    max_attempts integer DEFAULT 5 NOT NULL,
    next_attempt_at timestamp with time zone DEFAULT now() NOT NULL,
    last_error text,
    locked_at timestamp with time zone,
    locked_by text,
    claims integer DEFAULT 0 NOT NULL,
    in_doubt_since timestamp with time zone,
    requeued_at timestamp with time zone,
    provider_message_id text,
    delivery_status text,
    delivery_status_at timestamp with time zone,
    delivery_error text,
    correlation_id uuid NOT NULL,
    sent_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT channel_outbox_attempts_are_counted CHECK (((attempt_count >= 0) AND ((max_attempts >= 1) AND (max_attempts <= 1000)))),
    CONSTRAINT channel_outbox_only_sending_is_locked CHECK ((((status = 'sending'::text) = (locked_at IS NOT NULL)) AND ((locked_at IS NULL) = (locked_by IS NULL)))),
    CONSTRAINT channel_outbox_only_sent_has_its_time CHECK (((status = 'sent'::text) = (sent_at IS NOT NULL))),
    CONSTRAINT channel_outbox_payload_is_bounded CHECK ((pg_column_size(payload) <= 131072)),
    CONSTRAINT channel_outbox_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'sending'::text, 'sent'::text, 'dead'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
ALTER TABLE ONLY channels.channel_outbox ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY channels.channel_outbox FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE channels.channel_outbox IS 'Replies to messages, at most one per message, delivered at least once. `next_attempt_at` alone decides when a reply may be tried.';

CREATE TABLE events.outbox_deliveries (
    tenant_id uuid NOT NULL,
    event_id bigint NOT NULL,
    sink text NOT NULL,
    delivered_at timestamp with time zone DEFAULT now() NOT NULL
);

ALTER TABLE ONLY events.outbox_deliveries FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE events.outbox_deliveries IS 'Sinks that already have an event, written only when another sink of the same event failed, so that the retry skips them. Losing a row costs a repeated delivery, nothing more.';

CREATE TABLE events.sink_sets (
    generation bigint NOT NULL,
    sinks jsonb NOT NULL,
    registered_at timestamp with time zone DEFAULT now() NOT NULL,
    registered_by text NOT NULL,
    CONSTRAINT sink_sets_hold_sinks CHECK (((jsonb_typeof(sinks) = 'array'::text) AND (sinks <> '[]'::jsonb)))
);

COMMENT ON TABLE events.sink_sets IS 'Sets of sinks that relays deliver to; the one with the highest generation is registered. A sink has a name, a kind, a target that identifies its destination without its secrets, and the patterns of the events that it receives.';

CREATE TABLE execution.account_states (
    tenant_id uuid NOT NULL,
    account_id uuid NOT NULL,
    tokens double precision DEFAULT 0 NOT NULL,
    refilled_at timestamp with time zone,
    day date,
    used_today bigint DEFAULT 0 NOT NULL,
    quota_counts integer[],
    quota_slot bigint,
    next_look_up_at timestamp with time zone,
    wait_until timestamp with time zone,
    wait_reason text,
    circuit_open_until timestamp with time zone,
    circuit_reason text,
    circuit_openings integer DEFAULT 0 NOT NULL,
    probe_job_id uuid,
    probe_until timestamp with time zone
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02');

ALTER TABLE ONLY execution.account_states FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.account_states IS 'The state of a provider account that all processes share: call tokens, calls of the day, the wait that the provider asked for, and the circuit breaker. The first call creates the row; it is deleted with its account.';

CREATE TABLE execution.assets (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    version integer NOT NULL,
    channel text NOT NULL,
    content jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT assets_channel_check CHECK ((channel = ANY (ARRAY['email'::text, 'voice'::text, 'social'::text]))),
    CONSTRAINT assets_content_is_a_small_object CHECK (((jsonb_typeof(content) = 'object'::text) AND (octet_length((content)::text) <= 1048576))),
    CONSTRAINT assets_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255))),
    CONSTRAINT assets_versions_count_from_one CHECK ((version >= 1))
);
ALTER TABLE ONLY execution.assets ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.assets FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.assets IS 'Content in versions that never change, so that the content of every message can be read again.';

CREATE TABLE execution.campaign_audit_log (
    id bigint NOT NULL,
    tenant_id uuid NOT NULL,
    campaign_id uuid,
    phase_id uuid,
    run_id uuid,
    job_id uuid,
    outbox_id uuid,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    note text,
    CONSTRAINT campaign_audit_log_actor_is_named CHECK ((btrim(actor) <> ''::text))
);
ALTER TABLE ONLY execution.campaign_audit_log ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.campaign_audit_log FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.campaign_audit_log IS 'Append-only log of every change of a campaign, phase, run and send job, and of every doubt and its settlement, with the actor. An item that goes well has no line here: its outbox row records it.';

ALTER TABLE execution.campaign_audit_log ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME execution.campaign_audit_log_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE execution.campaign_events (
    tenant_id uuid NOT NULL,
    campaign_id uuid NOT NULL,
    sequence bigint NOT NULL,
    type text NOT NULL,
    phase text NOT NULL,
    at timestamp with time zone NOT NULL,
    payload jsonb NOT NULL,
    CONSTRAINT campaign_events_count_from_one CHECK ((sequence > 0)),
    CONSTRAINT campaign_events_type_check CHECK ((type = ANY (ARRAY['phase_started'::text, 'phase_paused'::text, 'phase_resumed'::text, 'phase_completed'::text, 'phase_failed'::text, 'campaign_progress'::text])))
);

ALTER TABLE ONLY execution.campaign_events FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.campaign_events IS 'The ordered history of a campaign. The numbers of a campaign''s events have no gaps and follow the order of commits. prune_campaign_events deletes old events.';

CREATE TABLE execution.campaign_phases (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    campaign_id uuid NOT NULL,
    "position" integer NOT NULL,
    phase text NOT NULL,
    kind text DEFAULT 'delivery'::text NOT NULL,
    channel text,
    asset_id uuid,
    list_id uuid,
    provider_account_id uuid,
    failure_tolerance numeric DEFAULT 0.05 NOT NULL,
    scheduled_for timestamp with time zone,
    quiet_time interval DEFAULT '00:11:00'::interval NOT NULL,
    status text DEFAULT 'not_started'::text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    failover_account_id uuid,
    progress numeric(4,1) DEFAULT 0 NOT NULL,
    progress_reported numeric(4,1),
    due text,
    CONSTRAINT campaign_phases_channel_check CHECK ((channel = ANY (ARRAY['email'::text, 'voice'::text, 'social'::text]))),
    CONSTRAINT campaign_phases_deliveries_are_whole CHECK (((kind = 'external'::text) OR ((channel IS NOT NULL) AND (asset_id IS NOT NULL) AND (provider_account_id IS NOT NULL) AND ((list_id IS NOT NULL) OR (channel = 'social'::text))))),
    CONSTRAINT campaign_phases_due_check CHECK ((due = ANY (ARRAY['advance'::text, 'end'::text]))),
    CONSTRAINT campaign_phases_fail_over_to_another_account CHECK ((failover_account_id <> provider_account_id)),
    CONSTRAINT campaign_phases_kind_check CHECK ((kind = ANY (ARRAY['delivery'::text, 'external'::text]))),
    CONSTRAINT campaign_phases_name_is_simple CHECK ((phase ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text)),
    CONSTRAINT campaign_phases_progress_is_a_percentage CHECK (((progress >= (0)::numeric) AND (progress <= (100)::numeric))),
    CONSTRAINT campaign_phases_quiet_time_is_positive CHECK ((quiet_time > '00:00:00'::interval)),
    CONSTRAINT campaign_phases_reports_are_percentages CHECK (((progress_reported >= (0)::numeric) AND (progress_reported <= (100)::numeric))),
    CONSTRAINT campaign_phases_scheduled_in_a_plain_year CHECK (((scheduled_for >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (scheduled_for < '9999-01-01 00:00:00+00'::timestamp with time zone))),
    CONSTRAINT campaign_phases_status_check CHECK ((status = ANY (ARRAY['not_started'::text, 'in_progress'::text, 'paused'::text, 'completed'::text, 'failed'::text]))),
    CONSTRAINT campaign_phases_tolerance_is_a_share CHECK (((failure_tolerance >= (0)::numeric) AND (failure_tolerance <= (1)::numeric)))
);
ALTER TABLE ONLY execution.campaign_phases ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.campaign_phases FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.campaign_phases IS 'The phases of a campaign, in order. A delivery names the asset it sends, the list it addresses and the provider account it uses; an external phase is the work of another service.';

CREATE TABLE execution.campaign_runs (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    campaign_id uuid NOT NULL,
    phase_id uuid NOT NULL,
    channel text NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    asset_id uuid NOT NULL,
    provider_account_id uuid NOT NULL,
    provider text NOT NULL,
    scheduled_for timestamp with time zone,
    quiet_time interval NOT NULL,
    key_part text NOT NULL,
    intended integer NOT NULL,
    same_address integer DEFAULT 0 NOT NULL,
    correlation_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    failover_account_id uuid,
    number integer DEFAULT 1 NOT NULL,
    cause text DEFAULT 'start'::text NOT NULL,
    CONSTRAINT campaign_runs_cause_check CHECK ((cause = ANY (ARRAY['start'::text, 'retry'::text, 'rerun'::text]))),
    CONSTRAINT campaign_runs_channel_check CHECK ((channel = ANY (ARRAY['email'::text, 'voice'::text, 'social'::text]))),
    CONSTRAINT campaign_runs_intend_something CHECK ((intended > 0)),
    CONSTRAINT campaign_runs_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'running'::text, 'completed'::text, 'partial'::text, 'failed'::text])))
);
ALTER TABLE ONLY execution.campaign_runs ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.campaign_runs FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.campaign_runs IS 'One execution of a phase, with the settings of the phase at the time of its deployment. Runs are never deleted; run_archives has those whose jobs and items were.';

CREATE TABLE execution.campaigns (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    auto_advance boolean DEFAULT true NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    sequence bigint DEFAULT 0 NOT NULL,
    pruned_through bigint DEFAULT 0 NOT NULL,
    progress_at timestamp with time zone,
    not_advanced text,
    CONSTRAINT campaigns_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255))),
    CONSTRAINT campaigns_prune_what_happened CHECK (((pruned_through >= 0) AND (pruned_through <= sequence)))
);
ALTER TABLE ONLY execution.campaigns ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.campaigns FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.campaigns IS 'Campaigns. The row also counts the events of the campaign''s history and is the lock for every change of its phases.';

CREATE TABLE execution.channel_outbox (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    job_id uuid NOT NULL,
    channel text NOT NULL,
    provider text NOT NULL,
    recipient_id uuid,
    recipient text,
    idempotency_key text NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    skipped boolean DEFAULT false NOT NULL,
    provider_message_id text,
    error text,
    reserved_by text,
    attempt integer,
    message_hash bytea,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finalized_at timestamp with time zone,
    in_doubt_since timestamp with time zone,
    moved_to_account_id uuid,
    CONSTRAINT channel_outbox_only_queued_is_in_doubt CHECK (((in_doubt_since IS NULL) OR (status = 'queued'::text))),
    CONSTRAINT channel_outbox_skipped_status_check CHECK (((skipped = false) OR (status = 'skipped'::text))),
    CONSTRAINT channel_outbox_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'sent'::text, 'called'::text, 'posted'::text, 'failed'::text, 'skipped'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_insert_scale_factor='0.2', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');

ALTER TABLE ONLY execution.channel_outbox FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.channel_outbox IS 'One row per item and idempotency key: the reservation of one provider call, then its result. The unique key prevents a second call. A row is deleted only with its archived run, after the jobs that could reserve its key.';

CREATE TABLE execution.claim_order (
    tenant_id uuid NOT NULL,
    last_claim_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

ALTER TABLE ONLY execution.claim_order FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.claim_order IS 'The time at which a worker last claimed send jobs of each tenant: claims serve the tenant that waited longest first. It affects fairness and never correctness.';

CREATE TABLE execution.doubts (
    outbox_id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    account_id uuid NOT NULL,
    provider text NOT NULL,
    looks integer DEFAULT 0 NOT NULL,
    next_look_at timestamp with time zone DEFAULT now() NOT NULL,
    held_by text,
    held_until timestamp with time zone,
    repeated_at timestamp with time zone,
    is_for_person boolean DEFAULT false NOT NULL,
    note text,
    campaign_id uuid NOT NULL,
    in_doubt_since timestamp with time zone NOT NULL
)
WITH (fillfactor='70');
ALTER TABLE ONLY execution.doubts ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.doubts FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.doubts IS 'One row per item in doubt, for as long as it is in doubt: the resolver that holds it, the time of the next look, and the findings so far. looks counts the claims and is the fencing token of a claim.';

CREATE TABLE execution.erasures (
    tenant_id uuid NOT NULL,
    lead_id uuid NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    items bigint NOT NULL,
    messages bigint NOT NULL,
    CONSTRAINT erasures_actor_is_named CHECK ((btrim(actor) <> ''::text))
);

ALTER TABLE ONLY execution.erasures FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.erasures IS 'One row per erased lead. The guards of other tables let the transaction that adds the row remove the person''s data, and no other. The rows never change.';

CREATE TABLE execution.job_queue (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    "position" integer NOT NULL,
    job_type text NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    outcome text,
    attempts integer DEFAULT 0 NOT NULL,
    max_attempts integer DEFAULT 5 NOT NULL,
    run_after timestamp with time zone DEFAULT now() NOT NULL,
    locked_by text,
    locked_at timestamp with time zone,
    last_error text,
    item_ids uuid[] NOT NULL,
    succeeded integer,
    failed integer,
    skipped integer,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finished_at timestamp with time zone,
    waits_for text,
    CONSTRAINT job_queue_attempts_are_bounded CHECK (((attempts >= 0) AND (max_attempts >= 1))),
    CONSTRAINT job_queue_ends_with_an_outcome CHECK (((status = ANY (ARRAY['completed'::text, 'dead'::text])) = (outcome IS NOT NULL))),
    CONSTRAINT job_queue_has_items CHECK (((cardinality(item_ids) >= 1) AND (cardinality(item_ids) <= 10000))),
    CONSTRAINT job_queue_lock_has_a_holder CHECK ((((status = 'locked'::text) = (locked_by IS NOT NULL)) AND ((locked_by IS NULL) = (locked_at IS NULL)))),
    CONSTRAINT job_queue_outcome_check CHECK ((outcome = ANY (ARRAY['completed'::text, 'partial'::text, 'failed'::text]))),
    CONSTRAINT job_queue_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'locked'::text, 'completed'::text, 'failed'::text, 'dead'::text]))),
    CONSTRAINT job_queue_type_check CHECK ((job_type = ANY (ARRAY['email_send_batch'::text, 'voice_call_batch'::text, 'social_post_batch'::text]))),
    CONSTRAINT job_queue_waits_for_check CHECK ((waits_for = ANY (ARRAY['rate'::text, 'daily'::text, 'hours'::text, 'retry_after'::text, 'circuit'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');

ALTER TABLE ONLY execution.job_queue FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.job_queue IS 'Send jobs: a send job is a batch of a run''s items, and one worker holds it at a time. item_ids are the items that the send job must bring to an end, so that a missing item is found. Send jobs are deleted only with their archived run.';

CREATE UNLOGGED TABLE execution.lead_intake (
    intake uuid NOT NULL,
    line bigint NOT NULL,
    lead_id uuid NOT NULL,
    identity text NOT NULL,
    external_id text,
    email text,
    phone text,
    timezone text,
    attributes jsonb NOT NULL,
    suppression_reason text
);

COMMENT ON TABLE execution.lead_intake IS 'Staging table of imports: COPY adds the lines of a file, and import_leads deletes them in the same transaction, so no other transaction sees them. COPY cannot write to a table with row-level security, and every table with a tenant_id has it, so this table has no tenant; the app role may insert and may not read.';

CREATE TABLE execution.lead_list_members (
    tenant_id uuid NOT NULL,
    list_id uuid NOT NULL,
    lead_id uuid NOT NULL
);

ALTER TABLE ONLY execution.lead_list_members FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.lead_list_members IS 'The leads of each list.';

CREATE TABLE execution.lead_lists (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT lead_lists_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255)))
);
ALTER TABLE ONLY execution.lead_lists ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.lead_lists FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.lead_lists IS 'Named lists of leads. A phase addresses one list.';

CREATE TABLE execution.leads (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    identity text NOT NULL,
    external_id text,
    email text,
    phone text,
    timezone text,
    attributes jsonb DEFAULT '{}'::jsonb NOT NULL,
    suppressed_at timestamp with time zone,
    suppression_reason text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    erasing_since timestamp with time zone,
    erased_at timestamp with time zone,
    CONSTRAINT leads_addresses_are_short CHECK (((octet_length(email) <= 320) AND (octet_length(phone) <= 32) AND (octet_length(external_id) <= 255) AND (octet_length(timezone) <= 64))),
    CONSTRAINT leads_addresses_fit_in_a_header CHECK ((((COALESCE(email, ''::text) || COALESCE(phone, ''::text)) || COALESCE(timezone, ''::text)) !~ '[[:cntrl:]]'::text)),
    CONSTRAINT leads_attributes_are_a_small_object CHECK (((jsonb_typeof(attributes) = 'object'::text) AND (octet_length((attributes)::text) <= 8192))),
    CONSTRAINT leads_being_erased_are_suppressed CHECK (((erasing_since IS NULL) OR (suppressed_at IS NOT NULL))),
    CONSTRAINT leads_erased_have_no_data CHECK (((erased_at IS NULL) OR ((erasing_since IS NOT NULL) AND (identity = ('erased:'::text || (id)::text)) AND (suppression_reason = 'erased'::text) AND (external_id IS NULL) AND (email IS NULL) AND (phone IS NULL) AND (timezone IS NULL) AND (attributes = '{}'::jsonb)))),
    CONSTRAINT leads_identity_is_given CHECK (((identity <> ''::text) AND (octet_length(identity) <= 400))),
    CONSTRAINT leads_suppression_has_a_reason CHECK (((suppressed_at IS NULL) = (suppression_reason IS NULL)))
);
ALTER TABLE ONLY execution.leads ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY execution.leads FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.leads IS 'People whom campaigns address. A lead keeps its id for ever, and its identity until it is erased; a suppressed lead gets no more messages. An erased lead has no data, and its row never changes again.';

CREATE TABLE execution.provider_callbacks (
    tenant_id uuid NOT NULL,
    account_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    message_id text NOT NULL,
    status text NOT NULL,
    proves_action boolean NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT provider_callbacks_are_short CHECK (((octet_length(idempotency_key) <= 64) AND (octet_length(message_id) <= 500) AND (octet_length(status) <= 64)))
);

ALTER TABLE ONLY execution.provider_callbacks FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.provider_callbacks IS 'Status callbacks of providers about their calls, each stored once. The rows are evidence and never change; they are deleted with their archived run, or when the person of the item is erased.';

CREATE TABLE execution.run_archives (
    tenant_id uuid NOT NULL,
    run_id uuid NOT NULL,
    archived_at timestamp with time zone DEFAULT now() NOT NULL,
    removed_at timestamp with time zone,
    exported_to text,
    jobs_completed bigint NOT NULL,
    jobs_dead bigint NOT NULL,
    sent bigint NOT NULL,
    called bigint NOT NULL,
    posted bigint NOT NULL,
    failed bigint NOT NULL,
    skipped bigint NOT NULL,
    missing bigint NOT NULL
);

ALTER TABLE ONLY execution.run_archives FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.run_archives IS 'One row per run whose jobs and items retention deletes, with the counts of its launch certificate. The guards let rows of these runs be deleted, and refuse every new job of them, so no key of them can be reserved again.';

CREATE TABLE execution.suppressed_addresses (
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    hash bytea NOT NULL,
    suppressed_at timestamp with time zone NOT NULL,
    CONSTRAINT suppressed_addresses_are_hashes CHECK ((octet_length(hash) = 32))
);

ALTER TABLE ONLY execution.suppressed_addresses FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.suppressed_addresses IS 'HMACs of the addresses of erased people who were suppressed: an import suppresses a lead that has one of them. Only the owner role reads this table.';

CREATE TABLE execution.suppression_keys (
    tenant_id uuid NOT NULL,
    inner_pad bytea NOT NULL,
    outer_pad bytea NOT NULL,
    CONSTRAINT suppression_keys_have_the_size_of_sha256 CHECK (((octet_length(inner_pad) = 64) AND (octet_length(outer_pad) = 64)))
);

ALTER TABLE ONLY execution.suppression_keys FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE execution.suppression_keys IS 'One random HMAC key per tenant that has erased a suppressed person. Only the owner role reads this table.';

CREATE TABLE jobs.alert_instances (
    id uuid DEFAULT jobs.new_id() NOT NULL,
    tenant_id uuid NOT NULL,
    alert_config_id text NOT NULL,
    external_object_id text,
    title text NOT NULL,
    severity text DEFAULT 'warning'::text NOT NULL,
    status text DEFAULT 'active'::text NOT NULL,
    evidence jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    resolved_at timestamp with time zone,
    CONSTRAINT alert_instances_evidence_is_an_object CHECK (((jsonb_typeof(evidence) = 'object'::text) AND (pg_column_size(evidence) <= 65536))),
    CONSTRAINT alert_instances_names_are_given CHECK (((btrim(alert_config_id) <> ''::text) AND (octet_length(alert_config_id) <= 255) AND (octet_length(external_object_id) <= 255) AND (btrim(title) <> ''::text) AND (octet_length(title) <= 1000))),
    CONSTRAINT alert_instances_only_resolved_have_their_time CHECK (((status = 'resolved'::text) = (resolved_at IS NOT NULL))),
    CONSTRAINT alert_instances_severity_check CHECK ((severity = ANY (ARRAY['info'::text, 'warning'::text, 'critical'::text]))),
    CONSTRAINT alert_instances_status_check CHECK ((status = ANY (ARRAY['active'::text, 'open'::text, 'triggered'::text, 'resolved'::text])))
);
ALTER TABLE ONLY jobs.alert_instances ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.alert_instances FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.alert_instances IS 'Alerts about conditions that a person should know. At most one alert per day is open for one configuration and object.';

CREATE TABLE jobs.alert_notifications (
    id uuid DEFAULT jobs.new_id() NOT NULL,
    tenant_id uuid NOT NULL,
    alert_instance_id uuid NOT NULL,
    account_id uuid NOT NULL,
    recipient text NOT NULL,
    about text NOT NULL,
    subject text NOT NULL,
    body text NOT NULL,
    status text DEFAULT 'queued'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    claims integer DEFAULT 0 NOT NULL,
    first_called_at timestamp with time zone,
    called_at timestamp with time zone,
    in_doubt_since timestamp with time zone,
    provider_message_id text,
    last_error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT alert_notifications_about_check CHECK ((about = ANY (ARRAY['raised'::text, 'resolved'::text]))),
    CONSTRAINT alert_notifications_recipient_is_bounded CHECK (((btrim(recipient) <> ''::text) AND (octet_length(recipient) <= 255))),
    CONSTRAINT alert_notifications_status_check CHECK ((status = ANY (ARRAY['queued'::text, 'sent'::text, 'failed'::text])))
);
ALTER TABLE ONLY jobs.alert_notifications ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.alert_notifications FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.alert_notifications IS 'Messages that tell a recipient that an alert was raised or resolved. Each has one row and one idempotency key, so that a recipient gets it once.';

COMMENT ON COLUMN jobs.alert_notifications.called_at IS 'Time from which the provider may have been called under the newest claim. A queued row with called_at is in doubt until its result is known.';

CREATE TABLE jobs.decision_cards (
    id uuid DEFAULT jobs.new_id() NOT NULL,
    tenant_id uuid NOT NULL,
    alert_instance_id uuid NOT NULL,
    metric_code text NOT NULL,
    period_start date NOT NULL,
    status text DEFAULT 'OPEN'::text NOT NULL,
    title text NOT NULL,
    recommendation text NOT NULL,
    evidence jsonb DEFAULT '{}'::jsonb NOT NULL,
    note text,
    decided_by text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT decision_cards_decided_say_by_whom CHECK (((status = 'OPEN'::text) OR (decided_by IS NOT NULL))),
    CONSTRAINT decision_cards_status_check CHECK ((status = ANY (ARRAY['OPEN'::text, 'IN_PROGRESS'::text, 'RESOLVED'::text, 'DISMISSED'::text])))
);
ALTER TABLE ONLY jobs.decision_cards ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.decision_cards FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.decision_cards IS 'Cards that ask a person to decide about an alert, with a recommendation.';

CREATE TABLE jobs.functions (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    target text NOT NULL,
    grain text DEFAULT 'day'::text NOT NULL,
    timeout_seconds integer DEFAULT 60 NOT NULL,
    max_retries integer DEFAULT 3 NOT NULL,
    initial_delay_ms integer DEFAULT 1000 NOT NULL,
    backoff_multiplier double precision DEFAULT 5 NOT NULL,
    max_delay_ms integer DEFAULT 30000 NOT NULL,
    sealed_secret bytea,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT functions_grain_check CHECK ((grain = ANY (ARRAY['day'::text, 'hour'::text, '5min'::text]))),
    CONSTRAINT functions_kind_check CHECK ((kind = ANY (ARRAY['http'::text, 'sql'::text, 'builtin'::text]))),
    CONSTRAINT functions_name_is_plain CHECK ((name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'::text)),
    CONSTRAINT functions_requests_are_signed CHECK (((kind = 'http'::text) = (sealed_secret IS NOT NULL))),
    CONSTRAINT functions_retries_are_bounded CHECK ((((max_retries >= 0) AND (max_retries <= 100)) AND ((initial_delay_ms >= 0) AND (initial_delay_ms <= 86400000)) AND ((backoff_multiplier >= (1)::double precision) AND (backoff_multiplier <= (100)::double precision)) AND ((max_delay_ms >= 0) AND (max_delay_ms <= 86400000)))),
    CONSTRAINT functions_target_is_given CHECK (((btrim(target) <> ''::text) AND (octet_length(target) <= 2048))),
    CONSTRAINT functions_timeout_is_bounded CHECK (((timeout_seconds >= 1) AND (timeout_seconds <= 900)))
);
ALTER TABLE ONLY jobs.functions ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.functions FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.functions IS 'Functions that a tenant can run, with their retry policy. A function of kind http has a secret, sealed to its row; the runner signs its requests with it.';

COMMENT ON COLUMN jobs.functions.target IS 'URL (http), name of a function in the database (sql), or name of a Rust function (builtin).';

COMMENT ON COLUMN jobs.functions.grain IS 'Period in which one lock key completes at most once: a day, an hour or five minutes of UTC.';

CREATE TABLE jobs.job_runs (
    id uuid DEFAULT jobs.new_id() NOT NULL,
    tenant_id uuid NOT NULL,
    function_name text NOT NULL,
    lock_key text NOT NULL,
    status text DEFAULT 'running'::text NOT NULL,
    input_params jsonb,
    result jsonb,
    error_message text,
    retry_count integer DEFAULT 0 NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    completed_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    duration_ms integer GENERATED ALWAYS AS (
CASE
    WHEN (completed_at IS NOT NULL) THEN (LEAST((EXTRACT(epoch FROM (completed_at - started_at)) * (1000)::numeric), (2147483647)::numeric))::integer
    ELSE NULL::integer
END) STORED,
    retry_at timestamp with time zone,
    heartbeat_at timestamp with time zone,
    schedule_id uuid,
    scheduled_for timestamp with time zone,
    grain text NOT NULL,
    grain_start timestamp with time zone NOT NULL,
    is_forced boolean DEFAULT false NOT NULL,
    locked_by text,
    claims integer DEFAULT 0 NOT NULL,
    CONSTRAINT job_runs_grain_check CHECK ((grain = ANY (ARRAY['day'::text, 'hour'::text, '5min'::text]))),
    CONSTRAINT job_runs_held_has_a_heartbeat CHECK (((locked_by IS NULL) = (heartbeat_at IS NULL))),
    CONSTRAINT job_runs_input_is_bounded CHECK ((pg_column_size(input_params) <= 1048576)),
    CONSTRAINT job_runs_only_completed_has_a_result CHECK (((result IS NULL) OR (status = 'completed'::text))),
    CONSTRAINT job_runs_only_failed_is_retried CHECK (((retry_at IS NULL) OR (status = 'failed'::text))),
    CONSTRAINT job_runs_only_running_has_no_end CHECK (((status = 'running'::text) = (completed_at IS NULL))),
    CONSTRAINT job_runs_only_running_is_held CHECK (((locked_by IS NULL) OR (status = 'running'::text))),
    CONSTRAINT job_runs_result_is_bounded CHECK ((pg_column_size(result) <= 1048576)),
    CONSTRAINT job_runs_retries_are_counted CHECK (((retry_count >= 0) AND (claims >= 0))),
    CONSTRAINT job_runs_status_check CHECK ((status = ANY (ARRAY['running'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.02');
ALTER TABLE ONLY jobs.job_runs ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.job_runs FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.job_runs IS 'Runs of functions, each under a lock key. At most one run per lock key is active, and at most one that is not forced completes per grain.';

COMMENT ON COLUMN jobs.job_runs.status IS 'running without locked_by: waits for a runner. running with locked_by: a runner holds it and heartbeat_at shows that it lives. failed with retry_at: waits for its retry. failed without retry_at: failed for good, and sync_errors has a row about it.';

COMMENT ON COLUMN jobs.job_runs.is_forced IS 'The caller ran the function again although the lock key had a completed run in this grain.';

COMMENT ON COLUMN jobs.job_runs.claims IS 'Number of claims, used as a fencing token: only the runner that names the newest claim can end the run.';

CREATE VIEW jobs.job_health WITH (security_invoker='true') AS
 SELECT job_runs.function_name,
    job_runs.status,
    count(*) AS count,
    avg(job_runs.duration_ms) AS avg_duration_ms,
    max(job_runs.duration_ms) AS max_duration_ms,
    sum(
        CASE
            WHEN (job_runs.retry_count > 0) THEN 1
            ELSE 0
        END) AS retried_count,
    job_runs.tenant_id
   FROM jobs.job_runs
  WHERE (job_runs.created_at > (now() - '24:00:00'::interval))
  GROUP BY job_runs.tenant_id, job_runs.function_name, job_runs.status
  ORDER BY job_runs.tenant_id, job_runs.function_name, job_runs.status;

COMMENT ON VIEW jobs.job_health IS 'Job runs of the last 24 hours by tenant, function and status, of the tenants that the reader may see.';

CREATE TABLE jobs.provided_functions (
    name text NOT NULL,
    runner text NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT provided_functions_name_is_plain CHECK ((name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$'::text)),
    CONSTRAINT provided_functions_runner_is_given CHECK (((btrim(runner) <> ''::text) AND (octet_length(runner) <= 255)))
);

COMMENT ON TABLE jobs.provided_functions IS 'Rust functions of applications that running processes provide, one row per process and name. They belong to the installation, not to a tenant. A function of kind builtin can be set to a name that is here and has not expired.';

COMMENT ON COLUMN jobs.provided_functions.runner IS 'Name of the runner. It is new at every start of a process.';

COMMENT ON COLUMN jobs.provided_functions.expires_at IS 'Time at which the process counts as dead unless it renews the row.';

CREATE TABLE jobs.schedule_firings (
    tenant_id uuid NOT NULL,
    schedule_id uuid NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    outcome text NOT NULL,
    job_run_id uuid,
    reason text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    looked_at timestamp with time zone DEFAULT now() NOT NULL,
    decided_at timestamp with time zone,
    CONSTRAINT schedule_firings_outcome_check CHECK ((outcome = ANY (ARRAY['started'::text, 'waiting'::text, 'skipped'::text]))),
    CONSTRAINT schedule_firings_started_have_a_run CHECK (((outcome <> 'started'::text) OR (job_run_id IS NOT NULL))),
    CONSTRAINT schedule_firings_waiting_are_not_decided CHECK (((outcome = 'waiting'::text) = (decided_at IS NULL)))
);
ALTER TABLE ONLY jobs.schedule_firings ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.schedule_firings FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.schedule_firings IS 'Firings of schedules and their outcomes: started (a run exists), waiting (for functions it depends on), skipped (reason says why).';

COMMENT ON COLUMN jobs.schedule_firings.looked_at IS 'Time at which a scheduler last checked a waiting firing. fire_waiting checks the oldest first.';

CREATE TABLE jobs.schedules (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    function_name text NOT NULL,
    cron text NOT NULL,
    timezone text NOT NULL,
    grain text,
    input jsonb,
    entities json,
    entity_hash text,
    depends_on text[] DEFAULT '{}'::text[] NOT NULL,
    misfire text DEFAULT 'once'::text NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    next_fire_at timestamp with time zone,
    last_fire_at timestamp with time zone,
    version integer DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT schedules_cron_is_given CHECK (((btrim(cron) <> ''::text) AND (octet_length(cron) <= 255))),
    CONSTRAINT schedules_dependencies_are_few CHECK ((cardinality(depends_on) <= 20)),
    CONSTRAINT schedules_entities_have_their_hash CHECK ((((entities IS NULL) = (entity_hash IS NULL)) AND (octet_length((entities)::text) <= 65536))),
    CONSTRAINT schedules_grain_check CHECK ((grain = ANY (ARRAY['day'::text, 'hour'::text, '5min'::text]))),
    CONSTRAINT schedules_input_is_bounded CHECK ((pg_column_size(input) <= 1048576)),
    CONSTRAINT schedules_misfire_check CHECK ((misfire = ANY (ARRAY['skip'::text, 'once'::text, 'all'::text]))),
    CONSTRAINT schedules_timezone_is_given CHECK (((btrim(timezone) <> ''::text) AND (octet_length(timezone) <= 255)))
);
ALTER TABLE ONLY jobs.schedules ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.schedules FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.schedules IS 'Times at which a function runs by itself. A scheduler that fires a schedule advances next_fire_at in the same transaction, so any number of schedulers can run.';

COMMENT ON COLUMN jobs.schedules.grain IS 'Grain of the runs of this schedule; null means the grain of the function.';

COMMENT ON COLUMN jobs.schedules.depends_on IS 'Names of functions that must have a completed run in an overlapping grain before a firing starts its run.';

COMMENT ON COLUMN jobs.schedules.version IS 'Increases with every change by a person. A scheduler names the version from which it planned its firing.';

CREATE TABLE jobs.sync_errors (
    id uuid DEFAULT jobs.new_id() NOT NULL,
    tenant_id uuid NOT NULL,
    error_type text NOT NULL,
    error_code text NOT NULL,
    error_message text NOT NULL,
    error_details jsonb DEFAULT '{}'::jsonb NOT NULL,
    source_entity_type text NOT NULL,
    source_entity_id uuid NOT NULL,
    is_resolved boolean DEFAULT false NOT NULL,
    resolved_at timestamp with time zone,
    resolved_by text,
    resolution_note text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT sync_errors_code_check CHECK ((error_code = ANY (ARRAY['MAX_RETRIES_EXCEEDED'::text, 'EXECUTION_ERROR'::text]))),
    CONSTRAINT sync_errors_details_are_an_object CHECK ((jsonb_typeof(error_details) = 'object'::text)),
    CONSTRAINT sync_errors_resolved_say_by_whom CHECK (((is_resolved = (resolved_at IS NOT NULL)) AND (is_resolved = (resolved_by IS NOT NULL))))
);
ALTER TABLE ONLY jobs.sync_errors ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY jobs.sync_errors FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE jobs.sync_errors IS 'Dead letters: job runs that failed for good and that a person must resolve.';

CREATE TABLE m10_recovery.outbox (
    id bigint NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    processed_at timestamp with time zone,
    retry_count integer DEFAULT 0 NOT NULL,
    process_after timestamp with time zone,
    claimed_at timestamp with time zone,
    claimed_by text,
    last_error text,
    tenant_id uuid DEFAULT '00000000-0000-0000-0000-000000000001'::uuid NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.2', autovacuum_analyze_scale_factor='0.02', autovacuum_vacuum_cost_delay='1');
ALTER TABLE ONLY m10_recovery.outbox ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY m10_recovery.outbox FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE m10_recovery.outbox IS 'Published domain events. An event is pending, claimed (for five minutes, by `claimed_by`) or processed. A processed event never changes, and an event that is not processed cannot be removed.';

ALTER TABLE m10_recovery.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME m10_recovery.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE postrider.catalogue (
    line text NOT NULL
);

COMMENT ON TABLE postrider.catalogue IS 'The database catalog as the last migration left it, one line per object. `postrider doctor` compares it with the current catalog.';

CREATE TABLE postrider.sources (
    path text NOT NULL,
    kind text NOT NULL,
    version integer,
    checksum text NOT NULL,
    release text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT sources_kind_check CHECK ((kind = ANY (ARRAY['baseline'::text, 'upgrade'::text, 'replaceable'::text]))),
    CONSTRAINT sources_replaceable_has_no_version CHECK (((kind = 'replaceable'::text) = (version IS NULL)))
);

COMMENT ON TABLE postrider.sources IS 'One row per applied file of sql/: baseline files with the version of the baseline, upgrade steps with their number, and replaceable files. The checksum shows whether the text changed since. The migrator locks this table, so that one migration runs at a time.';

CREATE TABLE tenancy.api_keys (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    role text NOT NULL,
    hint text NOT NULL,
    key_hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    CONSTRAINT api_keys_are_not_the_systems CHECK ((tenant_id <> '00000000-0000-0000-0000-000000000001'::uuid)),
    CONSTRAINT api_keys_hash_is_sha256 CHECK ((octet_length(key_hash) = 32)),
    CONSTRAINT api_keys_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255))),
    CONSTRAINT api_keys_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'operator'::text, 'admin'::text])))
);
ALTER TABLE ONLY tenancy.api_keys ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY tenancy.api_keys FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.api_keys IS 'API keys of tenants. Only the SHA-256 of a key is stored. A revoked key never changes again.';

CREATE TABLE tenancy.audit_log (
    id bigint NOT NULL,
    tenant_id uuid NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    note text,
    CONSTRAINT audit_log_actor_is_named CHECK ((btrim(actor) <> ''::text))
);
ALTER TABLE ONLY tenancy.audit_log ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY tenancy.audit_log FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.audit_log IS 'One row per administrative action: actor, action and subject. The function that acts adds the row in the same transaction. Rows never change.';

ALTER TABLE tenancy.audit_log ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenancy.audit_log_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenancy.context_keys (
    id integer NOT NULL,
    key bytea NOT NULL,
    inner_pad bytea NOT NULL,
    outer_pad bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT context_keys_have_the_sizes_of_sha256 CHECK (((octet_length(key) = 32) AND (octet_length(inner_pad) = 64) AND (octet_length(outer_pad) = 64)))
);

COMMENT ON TABLE tenancy.context_keys IS 'HMAC-SHA256 keys with which the server signs the tenant of a transaction. Signatures under the newest two keys are valid. Only the owner role reads this table.';

ALTER TABLE tenancy.context_keys ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME tenancy.context_keys_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE tenancy.epochs (
    number integer NOT NULL,
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    installation_id uuid NOT NULL,
    cause text NOT NULL,
    system_identifier text NOT NULL,
    database_oid bigint NOT NULL,
    database_name text NOT NULL,
    table_oid bigint NOT NULL,
    timeline integer,
    began_at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    reason text,
    copied_after timestamp with time zone,
    items_in_doubt bigint DEFAULT 0 NOT NULL,
    replies_in_doubt bigint DEFAULT 0 NOT NULL,
    firings_skipped bigint DEFAULT 0 NOT NULL,
    campaigns_stopped bigint DEFAULT 0 NOT NULL,
    suspected_at timestamp with time zone,
    suspicion text,
    CONSTRAINT epochs_actor_is_named CHECK ((btrim(actor) <> ''::text)),
    CONSTRAINT epochs_cause_check CHECK ((cause = ANY (ARRAY['enrolled'::text, 'adopted'::text, 'moved'::text]))),
    CONSTRAINT epochs_suspicions_have_a_reason CHECK (((suspected_at IS NULL) = (suspicion IS NULL)))
);

COMMENT ON TABLE tenancy.epochs IS 'One row per epoch; the newest one counts. The first epoch begins when a process with a sending role first starts on the database, and each adoption begins another one. A row names the cluster, database and table in which it was written; a mismatch shows that the database is a restored copy.';

CREATE TABLE tenancy.login_codes (
    tenant_id uuid NOT NULL,
    code_hash bytea NOT NULL,
    key_id uuid NOT NULL,
    name text,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT login_codes_hash_is_sha256 CHECK ((octet_length(code_hash) = 32)),
    CONSTRAINT login_codes_name_is_short CHECK (((btrim(name) <> ''::text) AND (char_length(name) <= 64)))
);
ALTER TABLE ONLY tenancy.login_codes ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY tenancy.login_codes FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.login_codes IS 'Codes with which the dashboard can be entered once, within a minute. Only the SHA-256 of a code is stored. Using a code deletes its row; retention removes expired ones.';

CREATE TABLE tenancy.master_key (
    is_the_only_row boolean DEFAULT true NOT NULL,
    sealed_check bytea NOT NULL,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT master_key_is_the_only_row CHECK (is_the_only_row)
);

COMMENT ON TABLE tenancy.master_key IS 'A known value sealed with the master key of this installation, in one row. It identifies the key under which all secrets are sealed. Only the owner role reads or writes this table.';

CREATE TABLE tenancy.process_marks (
    witness_id uuid NOT NULL,
    epoch_id uuid NOT NULL,
    process text NOT NULL,
    mark bigint DEFAULT 1 NOT NULL,
    timeline integer,
    marked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    stopped_at timestamp with time zone
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

COMMENT ON TABLE tenancy.process_marks IS 'One row per witness. A process with sending roles increments its mark every second and keeps the last committed mark outside the database, so that it can detect a restored copy.';

CREATE TABLE tenancy.provider_accounts (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    provider text NOT NULL,
    settings jsonb DEFAULT '{}'::jsonb NOT NULL,
    sealed_secret bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    limits jsonb DEFAULT '{}'::jsonb NOT NULL,
    secret_set_at timestamp with time zone,
    CONSTRAINT provider_accounts_limits_are_an_object CHECK ((jsonb_typeof(limits) = 'object'::text)),
    CONSTRAINT provider_accounts_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255))),
    CONSTRAINT provider_accounts_provider_is_given CHECK ((provider ~ '^[a-z][a-z0-9_]{0,62}$'::text)),
    CONSTRAINT provider_accounts_settings_are_an_object CHECK ((jsonb_typeof(settings) = 'object'::text))
);
ALTER TABLE ONLY tenancy.provider_accounts ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY tenancy.provider_accounts FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.provider_accounts IS 'Accounts of tenants at providers. The server seals the secret before it stores it; a sealed secret is bound to its tenant and row.';

CREATE TABLE tenancy.requests (
    tenant_id uuid NOT NULL,
    idempotency_key text NOT NULL,
    fingerprint bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    status smallint,
    location text,
    body text,
    CONSTRAINT requests_answers_are_bounded CHECK (((octet_length(body) <= 65536) AND (octet_length(location) <= 1024))),
    CONSTRAINT requests_fingerprint_is_sha256 CHECK ((octet_length(fingerprint) = 32)),
    CONSTRAINT requests_key_is_printable CHECK ((idempotency_key ~ '^[ -~]{1,255}$'::text))
);
ALTER TABLE ONLY tenancy.requests ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY tenancy.requests FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.requests IS 'Responses to requests with an `Idempotency-Key`, kept for a day. The transaction that does the work writes the row and its response, so a committed row is a request that was carried out, and a failed request leaves no row.';

CREATE TABLE tenancy.sessions (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    key_id uuid NOT NULL,
    token_hash bytea NOT NULL,
    name text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    last_seen_at timestamp with time zone DEFAULT now() NOT NULL,
    idle_for interval NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT sessions_hash_is_sha256 CHECK ((octet_length(token_hash) = 32)),
    CONSTRAINT sessions_may_be_idle_for_a_while CHECK ((idle_for > '00:00:00'::interval)),
    CONSTRAINT sessions_name_is_short CHECK (((btrim(name) <> ''::text) AND (char_length(name) <= 64)))
);
ALTER TABLE ONLY tenancy.sessions ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY tenancy.sessions FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.sessions IS 'Sessions of the dashboard. A session acts for the API key with which it was opened, and ends with it. Only the SHA-256 of the token is stored. A session that was ended or revoked has no row; retention removes expired ones.';

CREATE TABLE tenancy.tenants (
    id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    removing_since timestamp with time zone,
    CONSTRAINT tenants_id_is_not_the_servers CHECK ((id <> '00000000-0000-0000-0000-000000000000'::uuid)),
    CONSTRAINT tenants_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255)))
);

ALTER TABLE ONLY tenancy.tenants FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.tenants IS 'The tenants of this installation. Every row of a tenant table belongs to one of them. Tenant `system` owns the rows that belong to no customer, such as events that were published without a tenant.';

CREATE TABLE tenancy.workspaces (
    id uuid NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT workspaces_name_is_given CHECK (((btrim(name) <> ''::text) AND (octet_length(name) <= 255)))
);
ALTER TABLE ONLY tenancy.workspaces ALTER COLUMN tenant_id SET STATISTICS 0;

ALTER TABLE ONLY tenancy.workspaces FORCE ROW LEVEL SECURITY;

COMMENT ON TABLE tenancy.workspaces IS 'The workspaces of a tenant. Each tenant gets one called `default` when it is created.';

ALTER TABLE ONLY channels.channel_executors
    ADD CONSTRAINT channel_executors_one_per_account UNIQUE NULLS NOT DISTINCT (tenant_id, account_id);

ALTER TABLE ONLY channels.channel_executors
    ADD CONSTRAINT channel_executors_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY channels.channel_links
    ADD CONSTRAINT channel_links_one_per_sender UNIQUE (tenant_id, account_id, sender_id);

ALTER TABLE ONLY channels.channel_links
    ADD CONSTRAINT channel_links_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY channels.channel_messages
    ADD CONSTRAINT channel_messages_one_per_delivery UNIQUE (tenant_id, account_id, provider_message_id);

ALTER TABLE ONLY channels.channel_messages
    ADD CONSTRAINT channel_messages_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY channels.channel_outbox
    ADD CONSTRAINT channel_outbox_one_reply_per_message UNIQUE (channel_message_id, tenant_id);

ALTER TABLE ONLY channels.channel_outbox
    ADD CONSTRAINT channel_outbox_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY events.outbox_deliveries
    ADD CONSTRAINT outbox_deliveries_pkey PRIMARY KEY (tenant_id, event_id, sink);

ALTER TABLE ONLY events.sink_sets
    ADD CONSTRAINT sink_sets_pkey PRIMARY KEY (generation);

ALTER TABLE ONLY execution.account_states
    ADD CONSTRAINT account_states_pkey PRIMARY KEY (tenant_id, account_id);

ALTER TABLE ONLY execution.assets
    ADD CONSTRAINT assets_one_per_version UNIQUE (tenant_id, workspace_id, name, version);

ALTER TABLE ONLY execution.assets
    ADD CONSTRAINT assets_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.campaign_audit_log
    ADD CONSTRAINT campaign_audit_log_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.campaign_events
    ADD CONSTRAINT campaign_events_pkey PRIMARY KEY (tenant_id, campaign_id, sequence);

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_one_per_name UNIQUE (tenant_id, campaign_id, phase);

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_one_per_position UNIQUE (tenant_id, campaign_id, "position");

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.campaign_runs
    ADD CONSTRAINT campaign_runs_are_numbered UNIQUE (tenant_id, phase_id, number);

ALTER TABLE ONLY execution.campaign_runs
    ADD CONSTRAINT campaign_runs_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.campaigns
    ADD CONSTRAINT campaigns_one_per_name UNIQUE (tenant_id, workspace_id, name);

ALTER TABLE ONLY execution.campaigns
    ADD CONSTRAINT campaigns_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.channel_outbox
    ADD CONSTRAINT channel_outbox_one_row_per_key UNIQUE (idempotency_key, tenant_id, workspace_id);

ALTER TABLE ONLY execution.channel_outbox
    ADD CONSTRAINT channel_outbox_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.claim_order
    ADD CONSTRAINT claim_order_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY execution.doubts
    ADD CONSTRAINT doubts_pkey PRIMARY KEY (tenant_id, outbox_id);

ALTER TABLE ONLY execution.erasures
    ADD CONSTRAINT erasures_pkey PRIMARY KEY (tenant_id, lead_id);

ALTER TABLE ONLY execution.job_queue
    ADD CONSTRAINT job_queue_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.lead_list_members
    ADD CONSTRAINT lead_list_members_pkey PRIMARY KEY (tenant_id, list_id, lead_id);

ALTER TABLE ONLY execution.lead_lists
    ADD CONSTRAINT lead_lists_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.leads
    ADD CONSTRAINT leads_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY execution.provider_callbacks
    ADD CONSTRAINT provider_callbacks_pkey PRIMARY KEY (tenant_id, account_id, idempotency_key, message_id, status);

ALTER TABLE ONLY execution.run_archives
    ADD CONSTRAINT run_archives_pkey PRIMARY KEY (tenant_id, run_id);

ALTER TABLE ONLY execution.suppressed_addresses
    ADD CONSTRAINT suppressed_addresses_pkey PRIMARY KEY (tenant_id, workspace_id, hash);

ALTER TABLE ONLY execution.suppression_keys
    ADD CONSTRAINT suppression_keys_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY jobs.alert_instances
    ADD CONSTRAINT alert_instances_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY jobs.alert_notifications
    ADD CONSTRAINT alert_notifications_one_each UNIQUE (tenant_id, alert_instance_id, account_id, recipient, about);

ALTER TABLE ONLY jobs.alert_notifications
    ADD CONSTRAINT alert_notifications_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY jobs.decision_cards
    ADD CONSTRAINT decision_cards_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY jobs.functions
    ADD CONSTRAINT functions_one_per_name UNIQUE (tenant_id, name);

ALTER TABLE ONLY jobs.functions
    ADD CONSTRAINT functions_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY jobs.job_runs
    ADD CONSTRAINT job_runs_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY jobs.provided_functions
    ADD CONSTRAINT provided_functions_pkey PRIMARY KEY (name, runner);

ALTER TABLE ONLY jobs.schedule_firings
    ADD CONSTRAINT schedule_firings_pkey PRIMARY KEY (tenant_id, schedule_id, fire_at);

ALTER TABLE ONLY jobs.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY jobs.sync_errors
    ADD CONSTRAINT sync_errors_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY m10_recovery.outbox
    ADD CONSTRAINT outbox_one_row_per_tenant_and_id UNIQUE (tenant_id, id);

ALTER TABLE ONLY m10_recovery.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);

ALTER TABLE ONLY postrider.sources
    ADD CONSTRAINT sources_pkey PRIMARY KEY (path);

ALTER TABLE ONLY tenancy.api_keys
    ADD CONSTRAINT api_keys_one_row_per_key UNIQUE (tenant_id, key_hash);

ALTER TABLE ONLY tenancy.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY tenancy.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY tenancy.context_keys
    ADD CONSTRAINT context_keys_pkey PRIMARY KEY (id);

ALTER TABLE ONLY tenancy.epochs
    ADD CONSTRAINT epochs_one_per_id UNIQUE (id);

ALTER TABLE ONLY tenancy.epochs
    ADD CONSTRAINT epochs_pkey PRIMARY KEY (number);

ALTER TABLE ONLY tenancy.login_codes
    ADD CONSTRAINT login_codes_pkey PRIMARY KEY (tenant_id, code_hash);

ALTER TABLE ONLY tenancy.master_key
    ADD CONSTRAINT master_key_pkey PRIMARY KEY (is_the_only_row);

ALTER TABLE ONLY tenancy.process_marks
    ADD CONSTRAINT process_marks_pkey PRIMARY KEY (witness_id);

ALTER TABLE ONLY tenancy.provider_accounts
    ADD CONSTRAINT provider_accounts_one_per_name UNIQUE (tenant_id, workspace_id, name);

ALTER TABLE ONLY tenancy.provider_accounts
    ADD CONSTRAINT provider_accounts_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY tenancy.requests
    ADD CONSTRAINT requests_one_row_per_key PRIMARY KEY (tenant_id, idempotency_key);

ALTER TABLE ONLY tenancy.sessions
    ADD CONSTRAINT sessions_one_row_per_token UNIQUE (tenant_id, token_hash);

ALTER TABLE ONLY tenancy.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (tenant_id, id);

ALTER TABLE ONLY tenancy.tenants
    ADD CONSTRAINT tenants_one_per_name UNIQUE (name);

ALTER TABLE ONLY tenancy.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (id);

ALTER TABLE ONLY tenancy.workspaces
    ADD CONSTRAINT workspaces_one_per_name UNIQUE (tenant_id, name);

ALTER TABLE ONLY tenancy.workspaces
    ADD CONSTRAINT workspaces_pkey PRIMARY KEY (tenant_id, id);

CREATE INDEX channel_messages_by_age ON channels.channel_messages USING btree (tenant_id, created_at);

CREATE INDEX channel_messages_by_sender ON channels.channel_messages USING btree (tenant_id, account_id, sender_id, created_at);

CREATE INDEX channel_messages_by_status ON channels.channel_messages USING btree (tenant_id, status, id);

CREATE INDEX channel_messages_leases ON channels.channel_messages USING btree (tenant_id, leased_until) WHERE (leased_until IS NOT NULL);

CREATE INDEX channel_outbox_active ON channels.channel_outbox USING btree (tenant_id, account_id, next_attempt_at, id) WHERE (status = ANY (ARRAY['pending'::text, 'sending'::text]));

CREATE INDEX channel_outbox_by_status ON channels.channel_outbox USING btree (tenant_id, status, next_attempt_at);

CREATE INDEX channel_outbox_dead ON channels.channel_outbox USING btree (tenant_id, updated_at) WHERE (status = 'dead'::text);

CREATE INDEX channel_outbox_locks ON channels.channel_outbox USING btree (locked_at, tenant_id) WHERE (status = 'sending'::text);

CREATE INDEX account_states_circuits ON execution.account_states USING btree (circuit_open_until) WHERE (circuit_open_until IS NOT NULL);

CREATE INDEX assets_by_age ON execution.assets USING btree (tenant_id, created_at, id);

CREATE INDEX campaign_audit_log_by_campaign ON execution.campaign_audit_log USING btree (tenant_id, campaign_id, id);

CREATE INDEX campaign_audit_log_by_item ON execution.campaign_audit_log USING btree (outbox_id) WHERE (outbox_id IS NOT NULL);

CREATE INDEX campaign_audit_log_by_run ON execution.campaign_audit_log USING btree (tenant_id, run_id, id);

CREATE INDEX campaign_events_by_time ON execution.campaign_events USING btree (at);

CREATE INDEX campaign_phases_due ON execution.campaign_phases USING btree (tenant_id, id) WHERE (due IS NOT NULL);

CREATE INDEX campaign_phases_reported ON execution.campaign_phases USING btree (tenant_id, id) WHERE (progress_reported IS NOT NULL);

CREATE INDEX campaign_phases_unfinished ON execution.campaign_phases USING btree (tenant_id, status) WHERE (status <> 'completed'::text);

CREATE INDEX campaign_runs_by_age ON execution.campaign_runs USING btree (tenant_id, created_at, id);

CREATE INDEX campaign_runs_by_campaign ON execution.campaign_runs USING btree (tenant_id, campaign_id, created_at);

CREATE INDEX campaign_runs_by_correlation ON execution.campaign_runs USING btree (tenant_id, correlation_id);

CREATE INDEX campaign_runs_by_phase ON execution.campaign_runs USING btree (tenant_id, phase_id, created_at);

CREATE INDEX campaigns_by_age ON execution.campaigns USING btree (tenant_id, created_at, id);

CREATE INDEX channel_outbox_by_job ON execution.channel_outbox USING btree (job_id, tenant_id);

CREATE INDEX channel_outbox_in_doubt ON execution.channel_outbox USING btree (in_doubt_since) WHERE (in_doubt_since IS NOT NULL);

CREATE INDEX doubts_due ON execution.doubts USING btree (provider, next_look_at) WHERE (NOT is_for_person);

CREATE INDEX doubts_due_of_tenant ON execution.doubts USING btree (tenant_id, next_look_at) WHERE (NOT is_for_person);

CREATE INDEX erasures_by_time ON execution.erasures USING btree (at, tenant_id);

CREATE INDEX idx_channel_outbox_run_id ON execution.channel_outbox USING btree (run_id);

CREATE INDEX job_queue_by_run ON execution.job_queue USING btree (run_id, tenant_id, "position");

CREATE INDEX job_queue_left ON execution.job_queue USING btree (run_id, tenant_id, run_after, id) WHERE (status = ANY (ARRAY['queued'::text, 'locked'::text, 'failed'::text]));

CREATE INDEX job_queue_locked ON execution.job_queue USING btree (locked_at, tenant_id) WHERE (status = 'locked'::text);

CREATE INDEX job_queue_retries ON execution.job_queue USING btree (run_after) WHERE (status = 'failed'::text);

CREATE INDEX job_queue_retries_of_tenant ON execution.job_queue USING btree (tenant_id, run_after) WHERE (status = 'failed'::text);

CREATE INDEX job_queue_waiting ON execution.job_queue USING btree (tenant_id, run_after, id) WHERE (status = 'queued'::text);

CREATE INDEX lead_intake_by_intake ON execution.lead_intake USING btree (intake);

CREATE UNIQUE INDEX lead_lists_one_per_name ON execution.lead_lists USING btree (tenant_id, workspace_id, name) WHERE (name IS NOT NULL);

CREATE INDEX leads_by_email ON execution.leads USING btree (tenant_id, email, id) WHERE (email IS NOT NULL);

CREATE INDEX leads_by_later_external_id ON execution.leads USING btree (tenant_id, external_id) WHERE ((external_id IS NOT NULL) AND (identity !~~ 'id:%'::text));

CREATE INDEX leads_by_lower_email ON execution.leads USING btree (tenant_id, lower(email)) WHERE (email IS NOT NULL);

CREATE INDEX leads_by_phone ON execution.leads USING btree (tenant_id, phone, id) WHERE (phone IS NOT NULL);

CREATE UNIQUE INDEX leads_one_per_identity ON execution.leads USING btree (tenant_id, workspace_id, identity) WHERE (identity IS NOT NULL);

CREATE INDEX leads_suppressed ON execution.leads USING btree (tenant_id, id) WHERE (suppressed_at IS NOT NULL);

CREATE INDEX leads_suppressed_by_email ON execution.leads USING btree (lower(email), tenant_id, workspace_id) WHERE (suppressed_at IS NOT NULL);

CREATE INDEX leads_suppressed_by_phone ON execution.leads USING btree (phone, tenant_id, workspace_id) WHERE (suppressed_at IS NOT NULL);

CREATE INDEX alert_instances_by_age ON jobs.alert_instances USING btree (tenant_id, resolved_at) WHERE (status = 'resolved'::text);

CREATE INDEX alert_notifications_open ON jobs.alert_notifications USING btree (tenant_id, created_at) WHERE (status = 'queued'::text);

CREATE INDEX decision_cards_by_alert ON jobs.decision_cards USING btree (tenant_id, alert_instance_id);

CREATE UNIQUE INDEX idx_job_runs_lock_active ON jobs.job_runs USING btree (lock_key, tenant_id) WHERE ((status = 'running'::text) OR (retry_at IS NOT NULL));

CREATE INDEX idx_job_runs_status ON jobs.job_runs USING btree (status) WHERE (status = 'running'::text);

CREATE INDEX idx_job_runs_tenant_function ON jobs.job_runs USING btree (tenant_id, function_name, created_at DESC);

CREATE INDEX job_runs_by_age ON jobs.job_runs USING btree (tenant_id, created_at);

CREATE INDEX job_runs_completed ON jobs.job_runs USING btree (tenant_id, function_name, grain_start) WHERE (status = 'completed'::text);

CREATE INDEX job_runs_heartbeats ON jobs.job_runs USING btree (heartbeat_at, tenant_id) WHERE (heartbeat_at IS NOT NULL);

CREATE UNIQUE INDEX job_runs_once_per_grain ON jobs.job_runs USING btree (lock_key, tenant_id) WHERE ((NOT is_forced) AND ((status = ANY (ARRAY['running'::text, 'completed'::text])) OR (retry_at IS NOT NULL)));

CREATE INDEX job_runs_waiting ON jobs.job_runs USING btree (tenant_id, COALESCE(retry_at, started_at)) WHERE (((status = 'running'::text) AND (locked_by IS NULL)) OR (retry_at IS NOT NULL));

CREATE INDEX schedule_firings_by_age ON jobs.schedule_firings USING btree (tenant_id, fire_at) WHERE (outcome <> 'waiting'::text);

CREATE INDEX schedule_firings_waiting ON jobs.schedule_firings USING btree (looked_at) WHERE (outcome = 'waiting'::text);

CREATE INDEX schedule_firings_waiting_by_tenant ON jobs.schedule_firings USING btree (tenant_id, looked_at) WHERE (outcome = 'waiting'::text);

CREATE INDEX schedules_by_function ON jobs.schedules USING btree (tenant_id, function_name);

CREATE INDEX schedules_due ON jobs.schedules USING btree (next_fire_at) WHERE enabled;

CREATE INDEX sync_errors_by_age ON jobs.sync_errors USING btree (tenant_id, resolved_at) WHERE is_resolved;

CREATE INDEX sync_errors_by_id ON jobs.sync_errors USING btree (tenant_id, is_resolved, id DESC);

CREATE UNIQUE INDEX sync_errors_one_open_per_source ON jobs.sync_errors USING btree (tenant_id, source_entity_type, source_entity_id) WHERE (NOT is_resolved);

CREATE UNIQUE INDEX unique_alert_instance ON jobs.alert_instances USING btree (tenant_id, alert_config_id, COALESCE(external_object_id, ''::text), (((created_at AT TIME ZONE 'UTC'::text))::date)) NULLS NOT DISTINCT WHERE (status = ANY (ARRAY['active'::text, 'open'::text, 'triggered'::text]));

CREATE UNIQUE INDEX unique_decision_card ON jobs.decision_cards USING btree (tenant_id, alert_instance_id, metric_code, period_start) NULLS NOT DISTINCT WHERE (status = ANY (ARRAY['OPEN'::text, 'IN_PROGRESS'::text]));

CREATE INDEX outbox_failed_before ON m10_recovery.outbox USING btree (retry_count, id, tenant_id) WHERE ((processed_at IS NULL) AND (retry_count > 0));

CREATE INDEX outbox_ready_to_claim ON m10_recovery.outbox USING btree (COALESCE(process_after, '-infinity'::timestamp with time zone), id, tenant_id) WHERE (processed_at IS NULL);

CREATE INDEX audit_log_by_subject ON tenancy.audit_log USING btree (tenant_id, subject, id);

CREATE INDEX login_codes_by_expiry ON tenancy.login_codes USING btree (tenant_id, expires_at);

CREATE INDEX requests_by_age ON tenancy.requests USING btree (tenant_id, created_at);

CREATE INDEX sessions_by_expiry ON tenancy.sessions USING btree (tenant_id, expires_at);

CREATE INDEX sessions_by_key ON tenancy.sessions USING btree (tenant_id, key_id, last_seen_at);

CREATE TRIGGER channel_executors_are_sealed_under_one_key BEFORE INSERT ON channels.channel_executors FOR EACH ROW WHEN ((new.sealed_secret IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_other_master_key();

CREATE TRIGGER channel_executors_stay_sealed_under_one_key BEFORE UPDATE OF sealed_secret ON channels.channel_executors FOR EACH ROW WHEN ((new.sealed_secret IS DISTINCT FROM old.sealed_secret)) EXECUTE FUNCTION tenancy.refuse_other_master_key();

CREATE TRIGGER channel_messages_are_facts BEFORE UPDATE OF id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, thread, text, correlation_id, created_at ON channels.channel_messages FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a received message stays as it was written', 'sender_id', 'thread', 'text', 'user_id', 'last_error');

CREATE TRIGGER channel_messages_are_never_emptied BEFORE TRUNCATE ON channels.channel_messages FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('messages are removed by prune_messages, once they are over');

CREATE TRIGGER channel_messages_change_as_they_may BEFORE UPDATE OF status ON channels.channel_messages FOR EACH ROW WHEN (((old.status <> new.status) AND ((((((((((old.status <> 'accepted'::text) OR (new.status <> 'executed'::text)) AND ((old.status <> 'accepted'::text) OR (new.status <> 'denied_unlinked'::text))) AND ((old.status <> 'accepted'::text) OR (new.status <> 'denied_rbac'::text))) AND ((old.status <> 'accepted'::text) OR (new.status <> 'denied_sentinel'::text))) AND ((old.status <> 'accepted'::text) OR (new.status <> 'dispatch_failed'::text))) AND ((old.status <> 'dispatch_failed'::text) OR (new.status <> 'executed'::text))) AND ((old.status <> 'dispatch_failed'::text) OR (new.status <> 'denied_unlinked'::text))) AND ((old.status <> 'dispatch_failed'::text) OR (new.status <> 'denied_rbac'::text))) AND ((old.status <> 'dispatch_failed'::text) OR (new.status <> 'denied_sentinel'::text))))) EXECUTE FUNCTION tenancy.refuse_change('a message that was executed or denied stays so, and none is accepted twice');

CREATE TRIGGER channel_messages_executed_have_a_reply BEFORE INSERT OR UPDATE OF status ON channels.channel_messages FOR EACH ROW WHEN ((new.status = 'executed'::text)) EXECUTE FUNCTION channels.require_reply();

CREATE TRIGGER channel_messages_open_ones_are_kept BEFORE DELETE ON channels.channel_messages FOR EACH ROW WHEN (((old.status = 'accepted'::text) OR (old.leased_until IS NOT NULL))) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a message that is being executed cannot be removed');

CREATE TRIGGER channel_outbox_changes_as_it_may BEFORE UPDATE OF status ON channels.channel_outbox FOR EACH ROW WHEN (((old.status <> new.status) AND ((((((old.status <> 'pending'::text) OR (new.status <> 'sending'::text)) AND ((old.status <> 'sending'::text) OR (new.status <> 'sent'::text))) AND ((old.status <> 'sending'::text) OR (new.status <> 'pending'::text))) AND ((old.status <> 'sending'::text) OR (new.status <> 'dead'::text))) AND ((old.status <> 'dead'::text) OR (new.status <> 'pending'::text))))) EXECUTE FUNCTION tenancy.refuse_change('a reply goes from pending to sending, and from there to sent, pending or dead; what was sent stays sent');

CREATE TRIGGER channel_outbox_is_never_emptied BEFORE TRUNCATE ON channels.channel_outbox FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('replies are removed by prune_messages, once they are over');

CREATE TRIGGER channel_outbox_nothing_accepted_is_lost BEFORE DELETE ON channels.channel_outbox FOR EACH ROW WHEN ((old.status = ANY (ARRAY['pending'::text, 'sending'::text]))) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a reply that is on its way cannot be removed');

CREATE TRIGGER channel_outbox_replies_are_facts BEFORE UPDATE OF id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id, created_at ON channels.channel_outbox FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a reply stays as it was made', 'recipient_id', 'payload', 'last_error', 'delivery_error');

CREATE TRIGGER sink_sets_are_facts BEFORE DELETE OR UPDATE ON events.sink_sets FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('a registered set of sinks stays as it was registered');

CREATE TRIGGER sink_sets_are_never_emptied BEFORE TRUNCATE ON events.sink_sets FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('a registered set of sinks stays as it was registered');

CREATE TRIGGER assets_are_never_emptied BEFORE TRUNCATE ON execution.assets FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('a version of an asset never changes; create the next one');

CREATE TRIGGER assets_never_change BEFORE DELETE OR UPDATE ON execution.assets FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a version of an asset never changes; create the next one');

CREATE TRIGGER campaign_audit_log_is_append_only BEFORE DELETE OR UPDATE ON execution.campaign_audit_log FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('the audit log is append-only', 'note');

CREATE TRIGGER campaign_audit_log_is_never_emptied BEFORE TRUNCATE ON execution.campaign_audit_log FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('the audit log is append-only');

CREATE TRIGGER campaign_events_are_facts BEFORE UPDATE ON execution.campaign_events FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('an event of a campaign never changes');

CREATE TRIGGER campaign_events_are_never_emptied BEFORE TRUNCATE ON execution.campaign_events FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('an event of a campaign never changes');

CREATE TRIGGER campaign_events_stay_for_an_hour BEFORE DELETE ON execution.campaign_events FOR EACH ROW WHEN ((old.at > (now() - '01:00:00'::interval))) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('readers may still ask for it');

CREATE TRIGGER campaign_phases_change_as_the_table_says BEFORE UPDATE OF status ON execution.campaign_phases FOR EACH ROW WHEN (((((((((old.status <> 'not_started'::text) OR (new.status <> 'in_progress'::text)) AND ((old.status <> 'in_progress'::text) OR (new.status <> 'paused'::text))) AND ((old.status <> 'paused'::text) OR (new.status <> 'in_progress'::text))) AND ((old.status <> 'in_progress'::text) OR (new.status <> 'completed'::text))) AND ((old.status <> 'in_progress'::text) OR (new.status <> 'failed'::text))) AND ((old.status <> 'completed'::text) OR (new.status <> 'in_progress'::text))) AND ((old.status <> 'failed'::text) OR (new.status <> 'in_progress'::text)))) EXECUTE FUNCTION tenancy.refuse_change('a phase does not change like this');

CREATE TRIGGER campaign_runs_are_facts BEFORE UPDATE OF id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id, provider_account_id, provider, failover_account_id, scheduled_for, quiet_time, key_part, intended, same_address, correlation_id, created_at ON execution.campaign_runs FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('a deployed run never changes');

CREATE TRIGGER campaign_runs_are_never_emptied BEFORE TRUNCATE ON execution.campaign_runs FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('campaign runs are never removed');

CREATE TRIGGER campaign_runs_are_never_removed BEFORE DELETE ON execution.campaign_runs FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('campaign runs are never removed');

CREATE TRIGGER campaign_runs_causes_are_facts BEFORE UPDATE OF cause, number ON execution.campaign_runs FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('a deployed run never changes');

CREATE TRIGGER campaign_runs_change_as_the_table_says BEFORE UPDATE OF status ON execution.campaign_runs FOR EACH ROW WHEN ((((((old.status <> 'queued'::text) OR (new.status <> 'running'::text)) AND ((old.status <> 'running'::text) OR (new.status <> 'completed'::text))) AND ((old.status <> 'running'::text) OR (new.status <> 'partial'::text))) AND ((old.status <> 'running'::text) OR (new.status <> 'failed'::text)))) EXECUTE FUNCTION tenancy.refuse_change('a run does not change like this');

CREATE TRIGGER campaign_runs_ends_are_final BEFORE UPDATE ON execution.campaign_runs FOR EACH ROW WHEN ((old.status = ANY (ARRAY['completed'::text, 'partial'::text, 'failed'::text]))) EXECUTE FUNCTION tenancy.refuse_change('a run that has ended never changes');

CREATE TRIGGER channel_outbox_doubts_are_followed AFTER UPDATE ON execution.channel_outbox FOR EACH ROW WHEN ((old.in_doubt_since IS DISTINCT FROM new.in_doubt_since)) EXECUTE FUNCTION execution.follow_doubt();

CREATE TRIGGER channel_outbox_doubts_end_with_the_item AFTER UPDATE ON execution.channel_outbox FOR EACH ROW WHEN (((old.in_doubt_since IS NOT NULL) AND (new.in_doubt_since IS NULL) AND (new.status = 'queued'::text))) EXECUTE FUNCTION tenancy.refuse_change('an item stays in doubt until it is known how it ended');

CREATE TRIGGER channel_outbox_ends_are_final AFTER UPDATE ON execution.channel_outbox FOR EACH ROW WHEN ((old.status <> 'queued'::text)) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('an item that has ended never changes; sending again is a new run', 'recipient', 'error', 'message_hash');

CREATE TRIGGER channel_outbox_is_never_emptied BEFORE TRUNCATE ON execution.channel_outbox FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('a key that was used stays used');

CREATE TRIGGER channel_outbox_is_never_removed_from BEFORE DELETE ON execution.channel_outbox FOR EACH ROW EXECUTE FUNCTION execution.refuse_unless_archived('a key that was used stays used');

CREATE TRIGGER channel_outbox_moves_once AFTER UPDATE OF moved_to_account_id ON execution.channel_outbox FOR EACH ROW WHEN ((((old.moved_to_account_id IS NOT NULL) OR (old.status <> 'queued'::text) OR (old.in_doubt_since IS NOT NULL) OR (new.moved_to_account_id IS NULL)) AND ((old.reserved_by IS NOT NULL) OR (new.moved_to_account_id IS NOT NULL)))) EXECUTE FUNCTION tenancy.refuse_change('an item moves to another account once, and only while nothing was sent');

CREATE TRIGGER channel_outbox_reservations_are_facts AFTER UPDATE OF id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient, idempotency_key, reserved_by, attempt, message_hash, created_at ON execution.channel_outbox FOR EACH ROW WHEN (((old.status <> 'queued'::text) OR (old.in_doubt_since IS NOT NULL) OR (((((((((old.id IS DISTINCT FROM new.id) OR (old.tenant_id IS DISTINCT FROM new.tenant_id)) OR (old.workspace_id IS DISTINCT FROM new.workspace_id)) OR (old.run_id IS DISTINCT FROM new.run_id)) OR (old.job_id IS DISTINCT FROM new.job_id)) OR (old.channel IS DISTINCT FROM new.channel)) OR (old.provider IS DISTINCT FROM new.provider)) OR (old.recipient_id IS DISTINCT FROM new.recipient_id)) OR (old.idempotency_key IS DISTINCT FROM new.idempotency_key)) OR ((old.reserved_by IS NOT NULL) AND ((new.reserved_by IS NOT NULL) OR (new.status <> 'queued'::text) OR (new.in_doubt_since IS NOT NULL) OR (((old.recipient IS DISTINCT FROM new.recipient) OR (old.message_hash IS DISTINCT FROM new.message_hash)) OR (old.created_at IS DISTINCT FROM new.created_at)))))) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a reservation stays as it was made', 'recipient', 'error', 'message_hash');

CREATE TRIGGER channel_outbox_waits_for_adoption BEFORE INSERT ON execution.channel_outbox FOR EACH STATEMENT EXECUTE FUNCTION tenancy.require_sending_allowed();

CREATE TRIGGER erasures_are_facts BEFORE DELETE OR UPDATE ON execution.erasures FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('what was erased stays recorded');

CREATE TRIGGER erasures_are_never_emptied BEFORE TRUNCATE ON execution.erasures FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('what was erased stays recorded');

CREATE TRIGGER job_queue_changes_as_the_table_says BEFORE UPDATE OF status ON execution.job_queue FOR EACH ROW WHEN ((((((((old.status <> 'queued'::text) OR (new.status <> 'locked'::text)) AND ((old.status <> 'locked'::text) OR (new.status <> 'completed'::text))) AND ((old.status <> 'locked'::text) OR (new.status <> 'failed'::text))) AND ((old.status <> 'locked'::text) OR (new.status <> 'queued'::text))) AND ((old.status <> 'failed'::text) OR (new.status <> 'queued'::text))) AND ((old.status <> 'failed'::text) OR (new.status <> 'dead'::text)))) EXECUTE FUNCTION tenancy.refuse_change('a send job does not change like this');

CREATE TRIGGER job_queue_ends_are_final BEFORE UPDATE ON execution.job_queue FOR EACH ROW WHEN ((old.status = ANY (ARRAY['completed'::text, 'dead'::text]))) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a send job that has ended never changes', 'last_error');

CREATE TRIGGER job_queue_has_none_of_archived_runs BEFORE INSERT ON execution.job_queue FOR EACH ROW EXECUTE FUNCTION execution.refuse_jobs_of_archived_runs();

CREATE TRIGGER job_queue_intentions_are_facts BEFORE UPDATE OF id, tenant_id, workspace_id, run_id, "position", job_type, item_ids, max_attempts, created_at ON execution.job_queue FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('the items and limits of a send job never change');

CREATE TRIGGER job_queue_is_never_emptied BEFORE TRUNCATE ON execution.job_queue FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('send jobs are never removed');

CREATE TRIGGER job_queue_is_never_removed_from BEFORE DELETE ON execution.job_queue FOR EACH ROW EXECUTE FUNCTION execution.refuse_unless_archived('send jobs are never removed');

CREATE TRIGGER leads_erased_are_final BEFORE UPDATE ON execution.leads FOR EACH ROW WHEN ((old.erased_at IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_change('a lead that was erased never changes');

CREATE TRIGGER leads_erasures_are_recorded BEFORE UPDATE OF erased_at ON execution.leads FOR EACH ROW WHEN ((new.erased_at IS NOT NULL)) EXECUTE FUNCTION execution.require_erasure();

CREATE TRIGGER leads_stay_where_they_are BEFORE UPDATE OF id, tenant_id, workspace_id, identity ON execution.leads FOR EACH ROW WHEN (((old.id <> new.id) OR (old.tenant_id <> new.tenant_id) OR (old.workspace_id <> new.workspace_id) OR ((old.identity <> new.identity) AND (NOT ((old.erasing_since IS NOT NULL) AND (old.erased_at IS NULL) AND (new.erased_at IS NOT NULL)))))) EXECUTE FUNCTION tenancy.refuse_change('a lead stays who it is');

CREATE TRIGGER provider_callbacks_are_facts BEFORE DELETE OR UPDATE ON execution.provider_callbacks FOR EACH ROW EXECUTE FUNCTION execution.refuse_change_of_callback('a provider''s report never changes');

CREATE TRIGGER run_archives_are_facts BEFORE UPDATE ON execution.run_archives FOR EACH ROW WHEN (((old.removed_at IS NOT NULL) OR (new.removed_at IS NULL) OR ((((((((((((old.tenant_id IS DISTINCT FROM new.tenant_id) OR (old.run_id IS DISTINCT FROM new.run_id)) OR (old.archived_at IS DISTINCT FROM new.archived_at)) OR (old.exported_to IS DISTINCT FROM new.exported_to)) OR (old.jobs_completed IS DISTINCT FROM new.jobs_completed)) OR (old.jobs_dead IS DISTINCT FROM new.jobs_dead)) OR (old.sent IS DISTINCT FROM new.sent)) OR (old.called IS DISTINCT FROM new.called)) OR (old.posted IS DISTINCT FROM new.posted)) OR (old.failed IS DISTINCT FROM new.failed)) OR (old.skipped IS DISTINCT FROM new.skipped)) OR (old.missing IS DISTINCT FROM new.missing)))) EXECUTE FUNCTION tenancy.refuse_change('a certificate stays as it was written');

CREATE TRIGGER run_archives_are_never_emptied BEFORE TRUNCATE ON execution.run_archives FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('a certificate stays as it was written');

CREATE TRIGGER run_archives_are_never_removed BEFORE DELETE ON execution.run_archives FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a certificate stays as it was written');

CREATE TRIGGER run_archives_are_of_ended_runs BEFORE INSERT ON execution.run_archives FOR EACH ROW EXECUTE FUNCTION execution.refuse_unless_launched();

CREATE TRIGGER alert_instances_are_facts BEFORE UPDATE OF id, tenant_id, alert_config_id, external_object_id, created_at ON jobs.alert_instances FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('an alert stays about what it was raised for');

CREATE TRIGGER alert_instances_resolved_for_ever BEFORE UPDATE ON jobs.alert_instances FOR EACH ROW WHEN ((old.status = 'resolved'::text)) EXECUTE FUNCTION tenancy.refuse_change('an alert that is resolved stays so; what happens again is a new one');

CREATE TRIGGER alert_notifications_change_as_they_may BEFORE UPDATE OF status ON jobs.alert_notifications FOR EACH ROW WHEN (((old.status <> new.status) AND (((old.status <> 'queued'::text) OR (new.status <> 'sent'::text)) AND ((old.status <> 'queued'::text) OR (new.status <> 'failed'::text))))) EXECUTE FUNCTION tenancy.refuse_change('a notification that was sent or failed stays so');

CREATE TRIGGER decision_cards_change_as_they_may BEFORE UPDATE OF status ON jobs.decision_cards FOR EACH ROW WHEN (((old.status <> new.status) AND (((((((old.status <> 'OPEN'::text) OR (new.status <> 'IN_PROGRESS'::text)) AND ((old.status <> 'OPEN'::text) OR (new.status <> 'RESOLVED'::text))) AND ((old.status <> 'OPEN'::text) OR (new.status <> 'DISMISSED'::text))) AND ((old.status <> 'IN_PROGRESS'::text) OR (new.status <> 'OPEN'::text))) AND ((old.status <> 'IN_PROGRESS'::text) OR (new.status <> 'RESOLVED'::text))) AND ((old.status <> 'IN_PROGRESS'::text) OR (new.status <> 'DISMISSED'::text))))) EXECUTE FUNCTION tenancy.refuse_change('a card that is resolved or dismissed stays so');

CREATE TRIGGER functions_are_sealed_under_one_key BEFORE INSERT ON jobs.functions FOR EACH ROW WHEN ((new.sealed_secret IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_other_master_key();

CREATE TRIGGER functions_stay_sealed_under_one_key BEFORE UPDATE OF sealed_secret ON jobs.functions FOR EACH ROW WHEN ((new.sealed_secret IS DISTINCT FROM old.sealed_secret)) EXECUTE FUNCTION tenancy.refuse_other_master_key();

CREATE TRIGGER job_runs_active_ones_are_kept BEFORE DELETE ON jobs.job_runs FOR EACH ROW WHEN (((old.status = 'running'::text) OR (old.retry_at IS NOT NULL))) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a run that is not over cannot be removed');

CREATE TRIGGER job_runs_are_facts BEFORE UPDATE OF id, tenant_id, function_name, lock_key, input_params, created_at, schedule_id, scheduled_for, grain, grain_start, is_forced ON jobs.job_runs FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('the input of a job run never changes');

CREATE TRIGGER job_runs_are_never_emptied BEFORE TRUNCATE ON jobs.job_runs FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('runs are removed by prune_runs, once they are over');

CREATE TRIGGER job_runs_change_as_they_may BEFORE UPDATE OF status ON jobs.job_runs FOR EACH ROW WHEN (((old.status <> new.status) AND ((((((old.status <> 'running'::text) OR (new.status <> 'completed'::text)) AND ((old.status <> 'running'::text) OR (new.status <> 'failed'::text))) AND ((old.status <> 'running'::text) OR (new.status <> 'cancelled'::text))) AND ((old.status <> 'failed'::text) OR (new.status <> 'running'::text))) AND ((old.status <> 'failed'::text) OR (new.status <> 'cancelled'::text))))) EXECUTE FUNCTION tenancy.refuse_change('a run goes from running to completed, failed or cancelled, and from failed back to running or to cancelled');

CREATE TRIGGER job_runs_retries_are_true BEFORE UPDATE ON jobs.job_runs FOR EACH ROW WHEN ((new.retry_count <> (old.retry_count + (((old.status = 'failed'::text) AND (new.status = 'running'::text)))::integer))) EXECUTE FUNCTION tenancy.refuse_change('retry_count says how often a run went from failed to running');

CREATE TRIGGER schedule_firings_are_decided_once BEFORE UPDATE ON jobs.schedule_firings FOR EACH ROW WHEN (((old.outcome <> 'waiting'::text) OR (old.tenant_id <> new.tenant_id) OR (old.schedule_id <> new.schedule_id) OR (old.fire_at <> new.fire_at))) EXECUTE FUNCTION tenancy.refuse_change('a firing is decided once');

CREATE TRIGGER sync_errors_are_never_emptied BEFORE TRUNCATE ON jobs.sync_errors FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('errors are removed by prune_runs, once they are resolved');

CREATE TRIGGER sync_errors_open_ones_are_kept BEFORE DELETE ON jobs.sync_errors FOR EACH ROW WHEN ((NOT old.is_resolved)) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('an unresolved error cannot be removed');

CREATE TRIGGER sync_errors_resolved_for_ever BEFORE UPDATE ON jobs.sync_errors FOR EACH ROW WHEN (old.is_resolved) EXECUTE FUNCTION tenancy.refuse_change('a resolved dead letter never changes');

CREATE TRIGGER outbox_claim_has_a_holder BEFORE UPDATE OF claimed_at, claimed_by ON m10_recovery.outbox FOR EACH ROW WHEN (((new.claimed_at IS NULL) <> (new.claimed_by IS NULL))) EXECUTE FUNCTION tenancy.refuse_change('a claim has a time and a holder, or neither');

CREATE TRIGGER outbox_events_are_facts BEFORE UPDATE OF id, aggregate_type, aggregate_id, event_type, payload, created_at, tenant_id ON m10_recovery.outbox FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('a published event never changes');

CREATE TRIGGER outbox_events_begin_well BEFORE INSERT ON m10_recovery.outbox FOR EACH ROW WHEN (((new.aggregate_type = ''::text) OR (new.aggregate_id = ''::text) OR (new.event_type = ''::text) OR (new.retry_count < 0) OR ((new.claimed_at IS NULL) <> (new.claimed_by IS NULL)))) EXECUTE FUNCTION tenancy.refuse_change('an event has its three names, counts from zero, and a claim has a holder');

CREATE TRIGGER outbox_events_belong_to_a_tenant BEFORE INSERT ON m10_recovery.outbox FOR EACH ROW WHEN ((new.tenant_id <> '00000000-0000-0000-0000-000000000001'::uuid)) EXECUTE FUNCTION events.require_tenant_of_event();

CREATE TRIGGER outbox_is_never_emptied BEFORE TRUNCATE ON m10_recovery.outbox FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('events are removed by prune_outbox, once processed');

CREATE TRIGGER outbox_nothing_accepted_is_lost BEFORE DELETE ON m10_recovery.outbox FOR EACH ROW WHEN ((old.processed_at IS NULL)) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('an event that is not processed cannot be removed');

CREATE TRIGGER outbox_processed_is_final BEFORE UPDATE ON m10_recovery.outbox FOR EACH ROW WHEN ((old.processed_at IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_change('a processed event never changes');

CREATE TRIGGER outbox_retries_count_from_zero BEFORE UPDATE OF retry_count ON m10_recovery.outbox FOR EACH ROW WHEN ((new.retry_count < 0)) EXECUTE FUNCTION tenancy.refuse_change('retry_count counts failures and is never negative');

CREATE TRIGGER api_keys_revoked_for_ever BEFORE UPDATE ON tenancy.api_keys FOR EACH ROW WHEN ((old.revoked_at IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_change('a revoked key stays as it is; create a new one');

CREATE TRIGGER audit_log_is_append_only BEFORE DELETE OR UPDATE ON tenancy.audit_log FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('the audit log is append-only', 'note');

CREATE TRIGGER audit_log_is_never_emptied BEFORE TRUNCATE ON tenancy.audit_log FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('the audit log is append-only');

CREATE TRIGGER epochs_are_facts BEFORE UPDATE OF number, id, installation_id, cause, system_identifier, database_oid, database_name, table_oid, began_at, actor ON tenancy.epochs FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('an epoch stays as it began');

CREATE TRIGGER epochs_are_never_emptied BEFORE TRUNCATE ON tenancy.epochs FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('epochs are kept');

CREATE TRIGGER epochs_are_never_removed BEFORE DELETE ON tenancy.epochs FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_change('epochs are kept');

CREATE TRIGGER provider_accounts_are_sealed_under_one_key BEFORE INSERT ON tenancy.provider_accounts FOR EACH ROW WHEN ((new.sealed_secret IS NOT NULL)) EXECUTE FUNCTION tenancy.refuse_other_master_key();

CREATE TRIGGER provider_accounts_secrets_have_a_time BEFORE UPDATE OF sealed_secret ON tenancy.provider_accounts FOR EACH ROW WHEN ((old.sealed_secret IS DISTINCT FROM new.sealed_secret)) EXECUTE FUNCTION tenancy.note_new_secret();

CREATE TRIGGER provider_accounts_stay_sealed_under_one_key BEFORE UPDATE OF sealed_secret ON tenancy.provider_accounts FOR EACH ROW WHEN ((new.sealed_secret IS DISTINCT FROM old.sealed_secret)) EXECUTE FUNCTION tenancy.refuse_other_master_key();

CREATE TRIGGER provider_accounts_stay_where_they_are BEFORE UPDATE OF id, tenant_id ON tenancy.provider_accounts FOR EACH ROW WHEN (((old.id <> new.id) OR (old.tenant_id <> new.tenant_id))) EXECUTE FUNCTION tenancy.refuse_change('an account does not move; its secret is bound to its row');

CREATE TRIGGER requests_answered_once BEFORE UPDATE ON tenancy.requests FOR EACH ROW WHEN (((old.status IS NOT NULL) OR (((old.tenant_id IS DISTINCT FROM new.tenant_id) OR (old.idempotency_key IS DISTINCT FROM new.idempotency_key)) OR (old.fingerprint IS DISTINCT FROM new.fingerprint)))) EXECUTE FUNCTION tenancy.refuse_unless_erased_or_removed('a stored answer never changes', 'body');

CREATE TRIGGER tenants_are_never_emptied BEFORE TRUNCATE ON tenancy.tenants FOR EACH STATEMENT EXECUTE FUNCTION tenancy.refuse_change('the system tenant is part of the installation');

CREATE TRIGGER tenants_keep_the_system_tenant BEFORE DELETE OR UPDATE ON tenancy.tenants FOR EACH ROW WHEN ((old.id = '00000000-0000-0000-0000-000000000001'::uuid)) EXECUTE FUNCTION tenancy.refuse_change('the system tenant is part of the installation');

CREATE TRIGGER tenants_with_events_stay BEFORE DELETE ON tenancy.tenants FOR EACH ROW EXECUTE FUNCTION tenancy.refuse_removal_with_events();

ALTER TABLE ONLY channels.channel_executors
    ADD CONSTRAINT channel_executors_are_of_an_account FOREIGN KEY (tenant_id, account_id) REFERENCES tenancy.provider_accounts(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY channels.channel_executors
    ADD CONSTRAINT channel_executors_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY channels.channel_links
    ADD CONSTRAINT channel_links_are_of_an_account FOREIGN KEY (tenant_id, account_id) REFERENCES tenancy.provider_accounts(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY channels.channel_links
    ADD CONSTRAINT channel_links_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY channels.channel_messages
    ADD CONSTRAINT channel_messages_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id) ON DELETE CASCADE;

ALTER TABLE ONLY channels.channel_outbox
    ADD CONSTRAINT channel_outbox_answers_a_message FOREIGN KEY (tenant_id, channel_message_id) REFERENCES channels.channel_messages(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY channels.channel_outbox
    ADD CONSTRAINT channel_outbox_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id) ON DELETE CASCADE;

ALTER TABLE ONLY events.outbox_deliveries
    ADD CONSTRAINT outbox_deliveries_belong_to_an_event FOREIGN KEY (tenant_id, event_id) REFERENCES m10_recovery.outbox(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY execution.account_states
    ADD CONSTRAINT account_states_belong_to_an_account FOREIGN KEY (tenant_id, account_id) REFERENCES tenancy.provider_accounts(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY execution.assets
    ADD CONSTRAINT assets_belong_to_a_workspace FOREIGN KEY (tenant_id, workspace_id) REFERENCES tenancy.workspaces(tenant_id, id);

ALTER TABLE ONLY execution.campaign_audit_log
    ADD CONSTRAINT campaign_audit_log_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY execution.campaign_events
    ADD CONSTRAINT campaign_events_belong_to_a_campaign FOREIGN KEY (tenant_id, campaign_id) REFERENCES execution.campaigns(tenant_id, id);

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_address_a_list FOREIGN KEY (tenant_id, list_id) REFERENCES execution.lead_lists(tenant_id, id);

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_belong_to_a_campaign FOREIGN KEY (tenant_id, campaign_id) REFERENCES execution.campaigns(tenant_id, id);

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_fail_over_to_an_account FOREIGN KEY (tenant_id, failover_account_id) REFERENCES tenancy.provider_accounts(tenant_id, id);

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_send_an_asset FOREIGN KEY (tenant_id, asset_id) REFERENCES execution.assets(tenant_id, id);

ALTER TABLE ONLY execution.campaign_phases
    ADD CONSTRAINT campaign_phases_use_an_account FOREIGN KEY (tenant_id, provider_account_id) REFERENCES tenancy.provider_accounts(tenant_id, id);

ALTER TABLE ONLY execution.campaign_runs
    ADD CONSTRAINT campaign_runs_belong_to_a_campaign FOREIGN KEY (tenant_id, campaign_id) REFERENCES execution.campaigns(tenant_id, id);

ALTER TABLE ONLY execution.campaign_runs
    ADD CONSTRAINT campaign_runs_belong_to_a_phase FOREIGN KEY (tenant_id, phase_id) REFERENCES execution.campaign_phases(tenant_id, id);

ALTER TABLE ONLY execution.campaigns
    ADD CONSTRAINT campaigns_belong_to_a_workspace FOREIGN KEY (tenant_id, workspace_id) REFERENCES tenancy.workspaces(tenant_id, id);

ALTER TABLE ONLY execution.claim_order
    ADD CONSTRAINT claim_order_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY execution.doubts
    ADD CONSTRAINT doubts_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY execution.erasures
    ADD CONSTRAINT erasures_are_of_a_lead FOREIGN KEY (tenant_id, lead_id) REFERENCES execution.leads(tenant_id, id);

ALTER TABLE ONLY execution.job_queue
    ADD CONSTRAINT job_queue_belongs_to_a_run FOREIGN KEY (tenant_id, run_id) REFERENCES execution.campaign_runs(tenant_id, id);

ALTER TABLE ONLY execution.lead_list_members
    ADD CONSTRAINT lead_list_members_are_leads FOREIGN KEY (tenant_id, lead_id) REFERENCES execution.leads(tenant_id, id);

ALTER TABLE ONLY execution.lead_list_members
    ADD CONSTRAINT lead_list_members_have_a_list FOREIGN KEY (tenant_id, list_id) REFERENCES execution.lead_lists(tenant_id, id);

ALTER TABLE ONLY execution.lead_lists
    ADD CONSTRAINT lead_lists_belong_to_a_workspace FOREIGN KEY (tenant_id, workspace_id) REFERENCES tenancy.workspaces(tenant_id, id);

ALTER TABLE ONLY execution.leads
    ADD CONSTRAINT leads_belong_to_a_workspace FOREIGN KEY (tenant_id, workspace_id) REFERENCES tenancy.workspaces(tenant_id, id);

ALTER TABLE ONLY execution.provider_callbacks
    ADD CONSTRAINT provider_callbacks_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY execution.run_archives
    ADD CONSTRAINT run_archives_are_of_a_run FOREIGN KEY (tenant_id, run_id) REFERENCES execution.campaign_runs(tenant_id, id);

ALTER TABLE ONLY execution.suppressed_addresses
    ADD CONSTRAINT suppressed_addresses_belong_to_a_workspace FOREIGN KEY (tenant_id, workspace_id) REFERENCES tenancy.workspaces(tenant_id, id);

ALTER TABLE ONLY execution.suppression_keys
    ADD CONSTRAINT suppression_keys_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY jobs.alert_instances
    ADD CONSTRAINT alert_instances_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY jobs.alert_notifications
    ADD CONSTRAINT alert_notifications_are_about_an_alert FOREIGN KEY (tenant_id, alert_instance_id) REFERENCES jobs.alert_instances(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY jobs.decision_cards
    ADD CONSTRAINT decision_cards_are_about_an_alert FOREIGN KEY (tenant_id, alert_instance_id) REFERENCES jobs.alert_instances(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY jobs.functions
    ADD CONSTRAINT functions_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY jobs.job_runs
    ADD CONSTRAINT job_runs_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY jobs.schedule_firings
    ADD CONSTRAINT schedule_firings_are_of_a_schedule FOREIGN KEY (tenant_id, schedule_id) REFERENCES jobs.schedules(tenant_id, id) ON DELETE CASCADE;

ALTER TABLE ONLY jobs.schedules
    ADD CONSTRAINT schedules_run_a_function FOREIGN KEY (tenant_id, function_name) REFERENCES jobs.functions(tenant_id, name);

ALTER TABLE ONLY jobs.schedules
    ADD CONSTRAINT schedules_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY jobs.sync_errors
    ADD CONSTRAINT sync_errors_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY tenancy.api_keys
    ADD CONSTRAINT api_keys_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY tenancy.audit_log
    ADD CONSTRAINT audit_log_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY tenancy.login_codes
    ADD CONSTRAINT login_codes_belong_to_a_key FOREIGN KEY (tenant_id, key_id) REFERENCES tenancy.api_keys(tenant_id, id);

ALTER TABLE ONLY tenancy.process_marks
    ADD CONSTRAINT process_marks_belong_to_an_epoch FOREIGN KEY (epoch_id) REFERENCES tenancy.epochs(id);

ALTER TABLE ONLY tenancy.provider_accounts
    ADD CONSTRAINT provider_accounts_belong_to_a_workspace FOREIGN KEY (tenant_id, workspace_id) REFERENCES tenancy.workspaces(tenant_id, id);

ALTER TABLE ONLY tenancy.requests
    ADD CONSTRAINT requests_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE ONLY tenancy.sessions
    ADD CONSTRAINT sessions_belong_to_a_key FOREIGN KEY (tenant_id, key_id) REFERENCES tenancy.api_keys(tenant_id, id);

ALTER TABLE ONLY tenancy.workspaces
    ADD CONSTRAINT workspaces_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenancy.tenants(id);

ALTER TABLE channels.channel_executors ENABLE ROW LEVEL SECURITY;

ALTER TABLE channels.channel_links ENABLE ROW LEVEL SECURITY;

ALTER TABLE channels.channel_messages ENABLE ROW LEVEL SECURITY;

ALTER TABLE channels.channel_outbox ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON channels.channel_executors TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON channels.channel_links TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON channels.channel_messages TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON channels.channel_outbox TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY tenant_sees_its_own ON channels.channel_executors FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON channels.channel_links FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON channels.channel_messages FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON channels.channel_outbox FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE events.outbox_deliveries ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON events.outbox_deliveries TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY tenant_sees_its_own ON events.outbox_deliveries FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE execution.account_states ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.assets ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.campaign_audit_log ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.campaign_events ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.campaign_phases ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.campaign_runs ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.campaigns ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.channel_outbox ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.claim_order ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.doubts ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.erasures ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.job_queue ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.lead_list_members ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.lead_lists ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.leads ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON execution.account_states TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.assets TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.campaign_audit_log TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.campaign_events TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.campaign_phases TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.campaign_runs TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.campaigns TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.channel_outbox TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.claim_order TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.doubts TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.erasures TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.job_queue TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.lead_list_members TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.lead_lists TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.leads TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.provider_callbacks TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.run_archives TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.suppressed_addresses TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON execution.suppression_keys TO postrider_owner USING (true) WITH CHECK (true);

ALTER TABLE execution.provider_callbacks ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.run_archives ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.suppressed_addresses ENABLE ROW LEVEL SECURITY;

ALTER TABLE execution.suppression_keys ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant_sees_its_own ON execution.account_states FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.assets FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.campaign_audit_log FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.campaign_events FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.campaign_phases FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.campaign_runs FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.campaigns FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.channel_outbox FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.claim_order FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.doubts FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.erasures FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.job_queue FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.lead_list_members FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.lead_lists FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.leads FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.provider_callbacks FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.run_archives FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.suppressed_addresses FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON execution.suppression_keys FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE jobs.alert_instances ENABLE ROW LEVEL SECURITY;

ALTER TABLE jobs.alert_notifications ENABLE ROW LEVEL SECURITY;

ALTER TABLE jobs.decision_cards ENABLE ROW LEVEL SECURITY;

ALTER TABLE jobs.functions ENABLE ROW LEVEL SECURITY;

ALTER TABLE jobs.job_runs ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON jobs.alert_instances TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON jobs.alert_notifications TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON jobs.decision_cards TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON jobs.functions TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON jobs.job_runs TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON jobs.schedule_firings TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON jobs.schedules TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON jobs.sync_errors TO postrider_owner USING (true) WITH CHECK (true);

ALTER TABLE jobs.schedule_firings ENABLE ROW LEVEL SECURITY;

ALTER TABLE jobs.schedules ENABLE ROW LEVEL SECURITY;

ALTER TABLE jobs.sync_errors ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant_sees_its_own ON jobs.alert_instances FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON jobs.alert_notifications FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON jobs.decision_cards FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON jobs.functions FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON jobs.job_runs FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON jobs.schedule_firings FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON jobs.schedules FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON jobs.sync_errors FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE m10_recovery.outbox ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON m10_recovery.outbox TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY tenant_sees_its_own ON m10_recovery.outbox FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE tenancy.api_keys ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenancy.audit_log ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenancy.login_codes ENABLE ROW LEVEL SECURITY;

CREATE POLICY owner_passes ON tenancy.api_keys TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.audit_log TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.login_codes TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.provider_accounts TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.requests TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.sessions TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.tenants TO postrider_owner USING (true) WITH CHECK (true);

CREATE POLICY owner_passes ON tenancy.workspaces TO postrider_owner USING (true) WITH CHECK (true);

ALTER TABLE tenancy.provider_accounts ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenancy.requests ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenancy.sessions ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant_sees_its_own ON tenancy.api_keys FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.audit_log FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.login_codes FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.provider_accounts FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.requests FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.sessions FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.tenants FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

CREATE POLICY tenant_sees_its_own ON tenancy.workspaces FOR SELECT TO postrider_app, postrider_worker, postrider_read USING ((tenant_id = ( SELECT tenancy.current_tenant_id() AS current_tenant_id)));

ALTER TABLE tenancy.tenants ENABLE ROW LEVEL SECURITY;

ALTER TABLE tenancy.workspaces ENABLE ROW LEVEL SECURITY;

GRANT USAGE ON SCHEMA channels TO postrider_app;
GRANT USAGE ON SCHEMA channels TO postrider_worker;
GRANT USAGE ON SCHEMA channels TO postrider_read;

GRANT USAGE ON SCHEMA events TO postrider_app;
GRANT USAGE ON SCHEMA events TO postrider_worker;
GRANT USAGE ON SCHEMA events TO postrider_read;

GRANT USAGE ON SCHEMA execution TO postrider_app;
GRANT USAGE ON SCHEMA execution TO postrider_worker;
GRANT USAGE ON SCHEMA execution TO postrider_read;

GRANT USAGE ON SCHEMA jobs TO postrider_app;
GRANT USAGE ON SCHEMA jobs TO postrider_worker;
GRANT USAGE ON SCHEMA jobs TO postrider_read;

GRANT USAGE ON SCHEMA m10_recovery TO postrider_app;
GRANT USAGE ON SCHEMA m10_recovery TO postrider_worker;
GRANT USAGE ON SCHEMA m10_recovery TO postrider_read;
GRANT USAGE ON SCHEMA m10_recovery TO postrider_publish;

GRANT USAGE ON SCHEMA postrider TO postrider_app;
GRANT USAGE ON SCHEMA postrider TO postrider_worker;
GRANT USAGE ON SCHEMA postrider TO postrider_read;

GRANT USAGE ON SCHEMA tenancy TO postrider_app;
GRANT USAGE ON SCHEMA tenancy TO postrider_worker;
GRANT USAGE ON SCHEMA tenancy TO postrider_read;

REVOKE ALL ON FUNCTION channels.accounts_with_due_replies(p_limit integer, p_full_tenants uuid[], p_full_accounts uuid[], p_after_tenant uuid, p_after_account uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.accounts_with_due_replies(p_limit integer, p_full_tenants uuid[], p_full_accounts uuid[], p_after_tenant uuid, p_after_account uuid) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.admit_message(p_tenant_id uuid, p_message_id uuid, p_account_id uuid, p_sender_id text, p_lease interval) FROM PUBLIC;

REVOKE ALL ON FUNCTION channels.claim_replies(p_tenant_id uuid, p_worker text, p_limit integer, p_accounts uuid[], p_capacities integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.claim_replies(p_tenant_id uuid, p_worker text, p_limit integer, p_accounts uuid[], p_capacities integer[]) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.claim_unfinished_messages(p_tenant_id uuid, p_limit integer, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.claim_unfinished_messages(p_tenant_id uuid, p_limit integer, p_lease interval) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.deny_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.deny_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reason text) TO postrider_app;
GRANT ALL ON FUNCTION channels.deny_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reason text) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.enqueue_kept_replies(p_tenant_id uuid, p_reply_ids uuid[], p_max_attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.enqueue_kept_replies(p_tenant_id uuid, p_reply_ids uuid[], p_max_attempts integer) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.enqueue_reply(p_tenant_id uuid, p_message_id uuid, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION channels.executor_of(p_tenant_id uuid, p_account_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.executor_of(p_tenant_id uuid, p_account_id uuid) TO postrider_app;
GRANT ALL ON FUNCTION channels.executor_of(p_tenant_id uuid, p_account_id uuid) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.fail_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply jsonb, p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.fail_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply jsonb, p_error text) TO postrider_app;
GRANT ALL ON FUNCTION channels.fail_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply jsonb, p_error text) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.finish_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.finish_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) TO postrider_app;
GRANT ALL ON FUNCTION channels.finish_message(p_tenant_id uuid, p_message_id uuid, p_execution integer, p_reply_id uuid, p_payload jsonb, p_max_attempts integer) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.link_sender(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_sender_id text, p_user_id text, p_role text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.link_sender(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_sender_id text, p_user_id text, p_role text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION channels.measure_replies() FROM PUBLIC;
GRANT ALL ON FUNCTION channels.measure_replies() TO postrider_worker;

REVOKE ALL ON FUNCTION channels.note_account(p_tenant_id uuid, p_account_id uuid, p_worker text, p_word text, p_pause interval, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION channels.prune_messages(p_tenant_id uuid, p_older_than interval, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.prune_messages(p_tenant_id uuid, p_older_than interval, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.put_executor(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_kind text, p_url text, p_timeout_seconds integer, p_sealed_secret bytea, p_required_role text, p_sentinel jsonb, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.put_executor(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_kind text, p_url text, p_timeout_seconds integer, p_sealed_secret bytea, p_required_role text, p_sentinel jsonb, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION channels.receive_message(p_tenant_id uuid, p_account_id uuid, p_id uuid, p_reply_id uuid, p_provider_message_id text, p_sender_id text, p_recipient_id text, p_thread text, p_text text, p_correlation_id uuid, p_lease interval, p_max_attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.receive_message(p_tenant_id uuid, p_account_id uuid, p_id uuid, p_reply_id uuid, p_provider_message_id text, p_sender_id text, p_recipient_id text, p_thread text, p_text text, p_correlation_id uuid, p_lease interval, p_max_attempts integer) TO postrider_app;

REVOKE ALL ON FUNCTION channels.recent_messages(p_tenant_id uuid, p_account_id uuid, p_sender_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.recent_messages(p_tenant_id uuid, p_account_id uuid, p_sender_id text) TO postrider_app;
GRANT ALL ON FUNCTION channels.recent_messages(p_tenant_id uuid, p_account_id uuid, p_sender_id text) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.reclaim_replies(p_tenant_id uuid, p_lock_timeout interval, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.reclaim_replies(p_tenant_id uuid, p_lock_timeout interval, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.record_delivery(p_tenant_id uuid, p_account_id uuid, p_reply_id uuid, p_provider_message_id text, p_status text, p_proves_action boolean, p_at timestamp with time zone, p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.record_delivery(p_tenant_id uuid, p_account_id uuid, p_reply_id uuid, p_provider_message_id text, p_status text, p_proves_action boolean, p_at timestamp with time zone, p_error text) TO postrider_app;

REVOKE ALL ON FUNCTION channels.remove_executor(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.remove_executor(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION channels.requeue_replies(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_provider text, p_error_contains text, p_dead_before timestamp with time zone, p_dead_since timestamp with time zone, p_limit integer, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.requeue_replies(p_tenant_id uuid, p_id uuid, p_account_id uuid, p_provider text, p_error_contains text, p_dead_before timestamp with time zone, p_dead_since timestamp with time zone, p_limit integer, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION channels.require_reply() FROM PUBLIC;

REVOKE ALL ON FUNCTION channels.retry_message(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.retry_message(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION channels.settle_replies(p_tenant_ids uuid[], p_worker text, p_ids uuid[], p_claims integer[], p_verdicts text[], p_message_ids text[], p_errors text[], p_pauses interval[], p_in_doubt boolean[], p_accounts text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.settle_replies(p_tenant_ids uuid[], p_worker text, p_ids uuid[], p_claims integer[], p_verdicts text[], p_message_ids text[], p_errors text[], p_pauses interval[], p_in_doubt boolean[], p_accounts text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.take_look_up(p_tenant_id uuid, p_account_id uuid, p_every interval, OUT wait_seconds double precision, OUT every_seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.take_look_up(p_tenant_id uuid, p_account_id uuid, p_every interval, OUT wait_seconds double precision, OUT every_seconds double precision) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.tenants_with_expired_leases(p_keeps_reply boolean, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.tenants_with_expired_leases(p_keeps_reply boolean, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.tenants_with_old_messages(p_older_than interval) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.tenants_with_old_messages(p_older_than interval) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.tenants_with_stale_replies(p_lock_timeout interval, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.tenants_with_stale_replies(p_lock_timeout interval, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION channels.unlink_sender(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION channels.unlink_sender(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION events.claim_events(p_generation bigint, p_processor_id text, p_batch_size integer) FROM PUBLIC;
GRANT ALL ON FUNCTION events.claim_events(p_generation bigint, p_processor_id text, p_batch_size integer) TO postrider_worker;

REVOKE ALL ON FUNCTION events.close_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text, p_note text) FROM PUBLIC;
GRANT ALL ON FUNCTION events.close_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text, p_note text) TO postrider_app;

REVOKE ALL ON FUNCTION events.complete_events(p_generation bigint, p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION events.complete_events(p_generation bigint, p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION events.complete_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION events.complete_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_errors text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION events.note_deliveries(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_sinks text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION events.note_deliveries(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_sinks text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION events.outbox_backlog(p_stuck_after integer) FROM PUBLIC;
GRANT ALL ON FUNCTION events.outbox_backlog(p_stuck_after integer) TO postrider_worker;

REVOKE ALL ON FUNCTION events.prune_outbox(p_tenant_id uuid, p_processed_before timestamp with time zone, p_after_id bigint, p_window integer) FROM PUBLIC;
GRANT ALL ON FUNCTION events.prune_outbox(p_tenant_id uuid, p_processed_before timestamp with time zone, p_after_id bigint, p_window integer) TO postrider_worker;

REVOKE ALL ON FUNCTION events.register_sinks(p_sinks jsonb, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION events.register_sinks(p_sinks jsonb, p_actor text) TO postrider_worker;

REVOKE ALL ON FUNCTION events.release_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_delays_ms bigint[]) FROM PUBLIC;
GRANT ALL ON FUNCTION events.release_outbox_events(p_processor_id text, p_tenant_ids uuid[], p_event_ids bigint[], p_delays_ms bigint[]) TO postrider_worker;

REVOKE ALL ON FUNCTION events.replace_sinks(p_sinks jsonb, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION events.require_tenant_of_event() FROM PUBLIC;

REVOKE ALL ON FUNCTION events.retry_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION events.retry_outbox_event(p_tenant_id uuid, p_event_id bigint, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION events.tenants_with_events() FROM PUBLIC;
GRANT ALL ON FUNCTION events.tenants_with_events() TO postrider_worker;

REVOKE ALL ON FUNCTION execution.address_hashes(p_tenant_id uuid, p_email text, p_phone text, p_external_id text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.archive_run(p_tenant_id uuid, p_run_id uuid, p_before timestamp with time zone, p_exported_to text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.archive_run(p_tenant_id uuid, p_run_id uuid, p_before timestamp with time zone, p_exported_to text, p_actor text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.audit(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_id uuid, p_outbox_id uuid, p_actor text, p_action text, p_note text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.await_reservations(p_tenant_id uuid, p_campaign_id uuid, p_phase text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.await_reservations(p_tenant_id uuid, p_campaign_id uuid, p_phase text) TO postrider_app;

REVOKE ALL ON FUNCTION execution.begin_erasure(p_tenant_id uuid, p_lead_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.begin_erasure(p_tenant_id uuid, p_lead_id uuid) TO postrider_app;

REVOKE ALL ON FUNCTION execution.begin_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.begin_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.begin_windows(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[], OUT windows text[], OUT outbox_ids uuid[], OUT item_ids uuid[], OUT idempotency_keys text[], OUT verdicts text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.begin_windows(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[], p_first integer[], p_counts integer[], p_outbox_ids uuid[], p_recipients text[], p_message_hashes bytea[], p_verdicts text[], p_reasons text[], OUT windows text[], OUT outbox_ids uuid[], OUT item_ids uuid[], OUT idempotency_keys text[], OUT verdicts text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.break_circuit(p_tenant_id uuid, p_account_id uuid, p_actor text, p_reason text, p_until_secret boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.claim_doubts(p_tenant_id uuid, p_resolver_id text, p_providers text[], p_limit integer, p_lease interval, p_except_accounts uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.claim_doubts(p_tenant_id uuid, p_resolver_id text, p_providers text[], p_limit integer, p_lease interval, p_except_accounts uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.claim_queued_jobs(p_tenant_id uuid, p_worker_id text, p_limit integer, p_except_runs uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.claim_queued_jobs(p_tenant_id uuid, p_worker_id text, p_limit integer, p_except_runs uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.close_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.close_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.complete_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.complete_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.control_phase(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_trigger text, p_expected text, p_actor text, p_reason text, p_job_size integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.control_phase(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_trigger text, p_expected text, p_actor text, p_reason text, p_job_size integer) TO postrider_app;

REVOKE ALL ON FUNCTION execution.count_items(p_tenant_id uuid, p_job_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.create_asset(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_channel text, p_content jsonb, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.create_asset(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_channel text, p_content jsonb, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION execution.create_campaign(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_auto_advance boolean, p_phases jsonb, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.create_campaign(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_auto_advance boolean, p_phases jsonb, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION execution.create_run(p_tenant_id uuid, p_phase_id uuid, p_run_id uuid, p_cause text, p_job_size integer, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.deploy_campaign(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_actor text, p_run_id uuid, p_job_size integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.deploy_campaign(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_actor text, p_run_id uuid, p_job_size integer) TO postrider_app;

REVOKE ALL ON FUNCTION execution.doubt_leftovers(p_tenant_id uuid, p_job_id uuid, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.doubted_since(p_status text, p_in_doubt_since timestamp with time zone, p_reserved_by text, p_attempt integer, p_created_at timestamp with time zone, p_job_status text, p_locked_by text, p_locked_at timestamp with time zone, p_job_attempts integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.doubted_since(p_status text, p_in_doubt_since timestamp with time zone, p_reserved_by text, p_attempt integer, p_created_at timestamp with time zone, p_job_status text, p_locked_by text, p_locked_at timestamp with time zone, p_job_attempts integer) TO postrider_app;
GRANT ALL ON FUNCTION execution.doubted_since(p_status text, p_in_doubt_since timestamp with time zone, p_reserved_by text, p_attempt integer, p_created_at timestamp with time zone, p_job_status text, p_locked_by text, p_locked_at timestamp with time zone, p_job_attempts integer) TO postrider_worker;
GRANT ALL ON FUNCTION execution.doubted_since(p_status text, p_in_doubt_since timestamp with time zone, p_reserved_by text, p_attempt integer, p_created_at timestamp with time zone, p_job_status text, p_locked_by text, p_locked_at timestamp with time zone, p_job_attempts integer) TO postrider_read;

REVOKE ALL ON FUNCTION execution.end_attempt(p_tenant_id uuid, p_job_id uuid, p_actor text, p_retry_after interval, p_error text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.end_phase(p_tenant_id uuid, p_phase_id uuid, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.enter_phase_state(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_trigger text, p_run_id uuid, p_actor text, p_details jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.erase_lead(p_tenant_id uuid, p_lead_id uuid, p_actor text, OUT is_known boolean, OUT erased_at timestamp with time zone, OUT items bigint, OUT messages bigint, OUT open_items bigint, OUT open_messages bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.erase_lead(p_tenant_id uuid, p_lead_id uuid, p_actor text, OUT is_known boolean, OUT erased_at timestamp with time zone, OUT items bigint, OUT messages bigint, OUT open_items bigint, OUT open_messages bigint) TO postrider_app;

REVOKE ALL ON FUNCTION execution.fail_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_error text, p_retry_after interval) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.fail_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_error text, p_retry_after interval) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.fail_missing(p_tenant_id uuid, p_job_id uuid, p_error text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.finalize_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.finalize_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.find_leads(p_tenant_id uuid, p_wanted text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.find_leads(p_tenant_id uuid, p_wanted text) TO postrider_app;
GRANT ALL ON FUNCTION execution.find_leads(p_tenant_id uuid, p_wanted text) TO postrider_read;

REVOKE ALL ON FUNCTION execution.finish_run(p_tenant_id uuid, p_run_id uuid, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.follow_doubt() FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.heartbeat_jobs(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.heartbeat_jobs(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[], p_attempts integer[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.held_account(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.hold_account(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_seconds double precision, p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.hold_account(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_seconds double precision, p_reason text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.import_leads(p_tenant_id uuid, p_intake uuid, p_workspace_id uuid, p_list text, p_list_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.import_leads(p_tenant_id uuid, p_intake uuid, p_workspace_id uuid, p_list text, p_list_id uuid) TO postrider_app;

REVOKE ALL ON FUNCTION execution.keep_suppression(p_tenant_id uuid, p_workspace_id uuid, p_lead_id uuid, p_email text, p_phone text, p_external_id text, p_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.key_time(p_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.key_time(p_at timestamp with time zone) TO postrider_app;
GRANT ALL ON FUNCTION execution.key_time(p_at timestamp with time zone) TO postrider_worker;
GRANT ALL ON FUNCTION execution.key_time(p_at timestamp with time zone) TO postrider_read;

REVOKE ALL ON FUNCTION execution.launch_evidence(p_tenant_id uuid, p_run_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.launch_evidence(p_tenant_id uuid, p_run_id uuid) TO postrider_app;
GRANT ALL ON FUNCTION execution.launch_evidence(p_tenant_id uuid, p_run_id uuid) TO postrider_worker;
GRANT ALL ON FUNCTION execution.launch_evidence(p_tenant_id uuid, p_run_id uuid) TO postrider_read;

REVOKE ALL ON FUNCTION execution.measure_circuits() FROM PUBLIC;
GRANT ALL ON FUNCTION execution.measure_circuits() TO postrider_worker;

REVOKE ALL ON FUNCTION execution.measure_jobs() FROM PUBLIC;
GRANT ALL ON FUNCTION execution.measure_jobs() TO postrider_worker;

REVOKE ALL ON FUNCTION execution.move_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.move_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.note_counted_progress(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric, p_run jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.note_event(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_type text, p_payload jsonb) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.note_progress(p_tenant_id uuid, p_worker_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.note_progress(p_tenant_id uuid, p_worker_id text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.note_progress_of(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.old_runs(p_tenant_id uuid, p_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.old_runs(p_tenant_id uuid, p_before timestamp with time zone) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.open_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_reason text, p_until_secret boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.open_circuit(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_failover boolean, p_reason text, p_until_secret boolean) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamp with time zone) TO postrider_app;
GRANT ALL ON FUNCTION execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamp with time zone) TO postrider_worker;
GRANT ALL ON FUNCTION execution.outbox_key(p_run_id uuid, p_item_id uuid, p_key_part text, p_scheduled_for timestamp with time zone) TO postrider_read;

REVOKE ALL ON FUNCTION execution.phase_goal(p_trigger text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.phase_target(p_trigger text, p_from text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.prune_campaign_events(p_tenant_id uuid, p_before timestamp with time zone, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.prune_campaign_events(p_tenant_id uuid, p_before timestamp with time zone, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.prune_run(p_tenant_id uuid, p_run_id uuid, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.prune_run(p_tenant_id uuid, p_run_id uuid, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.put_off_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_next_look_at timestamp with time zone, p_is_for_person boolean, p_note text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.put_off_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_next_look_at timestamp with time zone, p_is_for_person boolean, p_note text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.put_off_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_wait interval, p_why text, p_note text, p_whole_run boolean, p_limits jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.put_off_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_wait interval, p_why text, p_note text, p_whole_run boolean, p_limits jsonb) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.read_account_states(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.read_account_states(p_tenant_ids uuid[], p_worker_id text, p_job_ids uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.read_accounts(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.read_accounts(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.read_audience(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_with_begun boolean, OUT ids uuid[], OUT external_ids text[], OUT emails text[], OUT phones text[], OUT timezones text[], OUT attributes jsonb[], OUT suppression_reasons text[], OUT begun uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.read_audience(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_with_begun boolean, OUT ids uuid[], OUT external_ids text[], OUT emails text[], OUT phones text[], OUT timezones text[], OUT attributes jsonb[], OUT suppression_reasons text[], OUT begun uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.read_job(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.read_job(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.record_callback(p_tenant_id uuid, p_account_id uuid, p_idempotency_key text, p_message_id text, p_status text, p_proves_action boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.record_callback(p_tenant_id uuid, p_account_id uuid, p_idempotency_key text, p_message_id text, p_status text, p_proves_action boolean) TO postrider_app;

REVOKE ALL ON FUNCTION execution.refuse_change_of_callback() FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.refuse_jobs_of_archived_runs() FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.refuse_unless_archived() FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.refuse_unless_launched() FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.release_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.release_job(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer, p_retry_after interval) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.report_progress(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_progress numeric, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.report_progress(p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_progress numeric, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION execution.requeue_overdue_jobs(p_tenant_id uuid, p_worker_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.requeue_overdue_jobs(p_tenant_id uuid, p_worker_id text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.require_erasure() FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.require_held(p_tenant_id uuid, p_job_id uuid, p_worker_id text, p_attempt integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.require_held_doubt(p_tenant_id uuid, p_outbox_id uuid, p_resolver_id text, p_look integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.resolve_in_doubt(p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.resolve_in_doubt(p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION execution.resolve_many_in_doubt(p_tenant_id uuid, p_outbox_ids uuid[], p_as text, p_provider_message_ids text[], p_note text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.resolve_many_in_doubt(p_tenant_id uuid, p_outbox_ids uuid[], p_as text, p_provider_message_ids text[], p_note text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION execution.roll_quota(p_counts integer[], p_slot bigint, p_now_slot bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.run_counts(p_tenant_id uuid, p_run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.run_progress(p_tenant_id uuid, p_run_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.run_progress(p_tenant_id uuid, p_run_ids uuid[]) TO postrider_app;
GRANT ALL ON FUNCTION execution.run_progress(p_tenant_id uuid, p_run_ids uuid[]) TO postrider_worker;
GRANT ALL ON FUNCTION execution.run_progress(p_tenant_id uuid, p_run_ids uuid[]) TO postrider_read;

REVOKE ALL ON FUNCTION execution.runs_since_all(p_tenant_id uuid, p_phase_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.settle_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_as text, p_provider_message_id text, p_evidence text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.settle_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_as text, p_provider_message_id text, p_evidence text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.settle_in_doubt(p_tenant_id uuid, p_outbox_id uuid, p_as text, p_provider_message_id text, p_note text, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.shelve_jobs(p_tenant_id uuid, p_run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.start_phase(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_run_id uuid, p_job_size integer, p_actor text, p_reason text) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.success_of(p_channel text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.success_of(p_channel text) TO postrider_app;
GRANT ALL ON FUNCTION execution.success_of(p_channel text) TO postrider_worker;
GRANT ALL ON FUNCTION execution.success_of(p_channel text) TO postrider_read;

REVOKE ALL ON FUNCTION execution.suppress_erased_leads(p_tenant_id uuid, p_workspace_id uuid, p_lead_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.suppress_lead(p_tenant_id uuid, p_lead_id uuid, p_reason text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.suppress_lead(p_tenant_id uuid, p_lead_id uuid, p_reason text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION execution.take_call_token_for_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_rate double precision, p_quota_calls integer, p_quota_seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.take_call_token_for_doubt(p_tenant_id uuid, p_resolver_id text, p_outbox_id uuid, p_look integer, p_rate double precision, p_quota_calls integer, p_quota_seconds double precision) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.take_call_tokens(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_wanted integer, p_failover boolean, p_rate double precision, p_again boolean, p_quota_calls integer, p_quota_seconds double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.take_call_tokens(p_tenant_id uuid, p_worker_id text, p_job_id uuid, p_attempt integer, p_wanted integer, p_failover boolean, p_rate double precision, p_again boolean, p_quota_calls integer, p_quota_seconds double precision) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.tenants_with_due_doubts(p_providers text[], p_limit integer, p_except_tenants uuid[], p_except_accounts uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.tenants_with_due_doubts(p_providers text[], p_limit integer, p_except_tenants uuid[], p_except_accounts uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.tenants_with_due_jobs(p_limit integer, p_except uuid[], p_except_run_tenants uuid[], p_except_runs uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.tenants_with_due_jobs(p_limit integer, p_except uuid[], p_except_run_tenants uuid[], p_except_runs uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.tenants_with_due_phases(p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.tenants_with_due_phases(p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.tenants_with_due_progress(p_worker_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.tenants_with_due_progress(p_worker_id text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.tenants_with_old_history(p_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.tenants_with_old_history(p_before timestamp with time zone) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.tenants_with_old_runs(p_before timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.tenants_with_old_runs(p_before timestamp with time zone) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.tend_phase(p_tenant_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.tend_phase(p_tenant_id uuid, p_actor text) TO postrider_worker;

REVOKE ALL ON FUNCTION execution.try_new_secret(p_tenant_id uuid, p_account_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.unshelve_jobs(p_tenant_id uuid, p_run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION execution.unsuppress_lead(p_tenant_id uuid, p_lead_id uuid, p_note text, p_actor text, OUT is_known boolean, OUT also_suppressed uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.unsuppress_lead(p_tenant_id uuid, p_lead_id uuid, p_note text, p_actor text, OUT is_known boolean, OUT also_suppressed uuid[]) TO postrider_app;

REVOKE ALL ON FUNCTION execution.verify_launch(p_tenant_id uuid, p_run_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION execution.verify_launch(p_tenant_id uuid, p_run_id uuid) TO postrider_app;
GRANT ALL ON FUNCTION execution.verify_launch(p_tenant_id uuid, p_run_id uuid) TO postrider_worker;
GRANT ALL ON FUNCTION execution.verify_launch(p_tenant_id uuid, p_run_id uuid) TO postrider_read;

REVOKE ALL ON FUNCTION execution.wake_jobs_of_circuit(p_tenant_id uuid, p_account_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.acquire_run(p_tenant_id uuid, p_id uuid, p_function text, p_entity_hash text, p_input jsonb, p_force boolean, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.acquire_run(p_tenant_id uuid, p_id uuid, p_function text, p_entity_hash text, p_input jsonb, p_force boolean, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.are_dependencies_met(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.audit(p_tenant_id uuid, p_actor text, p_action text, p_subject text, p_note text) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.can_run(p_kind text, p_target text, p_kinds text[], p_builtins text[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.cancel_run(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.cancel_run(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.claim_doubtful_notifications(p_tenant_id uuid, p_quiet interval, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.claim_doubtful_notifications(p_tenant_id uuid, p_quiet interval, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.claim_runs(p_tenant_id uuid, p_worker text, p_limit integer, p_kinds text[], p_builtins text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.claim_runs(p_tenant_id uuid, p_worker text, p_limit integer, p_kinds text[], p_builtins text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.close_alerts(p_tenant_id uuid, p_ids uuid[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.decide_card(p_tenant_id uuid, p_id uuid, p_status text, p_note text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.decide_card(p_tenant_id uuid, p_id uuid, p_status text, p_note text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.decide_firing(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone, p_run_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.detect_alerts(p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.detect_alerts(p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.due_schedules(p_limit integer, p_per_tenant integer, p_except_tenant_ids uuid[], p_except_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.due_schedules(p_limit integer, p_per_tenant integer, p_except_tenant_ids uuid[], p_except_ids uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.end_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text, p_results jsonb[], p_errors text[], p_are_retryable boolean[]) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.end_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text, p_results jsonb[], p_errors text[], p_are_retryable boolean[]) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.entity_hash(p_entities json) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.entity_hash(p_entities json) TO postrider_app;
GRANT ALL ON FUNCTION jobs.entity_hash(p_entities json) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.entity_hash(p_entities json) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.fire_schedule(p_tenant_id uuid, p_id uuid, p_due timestamp with time zone, p_version integer, p_fire_at timestamp with time zone[], p_run_ids uuid[], p_skipped_at timestamp with time zone, p_skipped_reason text, p_next_fire_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.fire_schedule(p_tenant_id uuid, p_id uuid, p_due timestamp with time zone, p_version integer, p_fire_at timestamp with time zone[], p_run_ids uuid[], p_skipped_at timestamp with time zone, p_skipped_reason text, p_next_fire_at timestamp with time zone) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.fire_waiting(p_tenant_id uuid, p_limit integer, p_patience interval) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.fire_waiting(p_tenant_id uuid, p_limit integer, p_patience interval) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.generate_decision_cards(p_tenant_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.generate_decision_cards(p_tenant_id uuid) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.grain_length(p_grain text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.grain_length(p_grain text) TO postrider_app;
GRANT ALL ON FUNCTION jobs.grain_length(p_grain text) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.grain_length(p_grain text) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.grain_start(p_grain text, p_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.grain_start(p_grain text, p_at timestamp with time zone) TO postrider_app;
GRANT ALL ON FUNCTION jobs.grain_start(p_grain text, p_at timestamp with time zone) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.grain_start(p_grain text, p_at timestamp with time zone) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.grain_label(p_grain text, p_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.grain_label(p_grain text, p_at timestamp with time zone) TO postrider_app;
GRANT ALL ON FUNCTION jobs.grain_label(p_grain text, p_at timestamp with time zone) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.grain_label(p_grain text, p_at timestamp with time zone) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.grain_overlaps(p_grain text, p_grain_start timestamp with time zone, p_since timestamp with time zone, p_until timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.heartbeat_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.heartbeat_runs(p_tenant_ids uuid[], p_ids uuid[], p_claims integer[], p_worker text) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.job_conditions(p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.json_code_units(p_string text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.json_code_units(p_string text) TO postrider_app;
GRANT ALL ON FUNCTION jobs.json_code_units(p_string text) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.json_code_units(p_string text) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.json_digits(p_number text, OUT digits text, OUT point bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.json_digits(p_number text, OUT digits text, OUT point bigint) TO postrider_app;
GRANT ALL ON FUNCTION jobs.json_digits(p_number text, OUT digits text, OUT point bigint) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.json_digits(p_number text, OUT digits text, OUT point bigint) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.json_string(p_escaped text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.json_string(p_escaped text) TO postrider_app;
GRANT ALL ON FUNCTION jobs.json_string(p_escaped text) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.json_string(p_escaped text) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.json_members(p_shielded json) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.json_members(p_shielded json) TO postrider_app;
GRANT ALL ON FUNCTION jobs.json_members(p_shielded json) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.json_members(p_shielded json) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.json_number(p_number text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.json_number(p_number text) TO postrider_app;
GRANT ALL ON FUNCTION jobs.json_number(p_number text) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.json_number(p_number text) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.json_shielded(p_value json) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.json_shielded(p_value json) TO postrider_app;
GRANT ALL ON FUNCTION jobs.json_shielded(p_value json) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.json_shielded(p_value json) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.json_text(p_shielded json, p_depth integer) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.json_text(p_shielded json, p_depth integer) TO postrider_app;
GRANT ALL ON FUNCTION jobs.json_text(p_shielded json, p_depth integer) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.json_text(p_shielded json, p_depth integer) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.lock_key(p_function text, p_tenant_id uuid, p_grain text, p_at timestamp with time zone, p_entity_hash text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.lock_key(p_function text, p_tenant_id uuid, p_grain text, p_at timestamp with time zone, p_entity_hash text) TO postrider_app;
GRANT ALL ON FUNCTION jobs.lock_key(p_function text, p_tenant_id uuid, p_grain text, p_at timestamp with time zone, p_entity_hash text) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.lock_key(p_function text, p_tenant_id uuid, p_grain text, p_at timestamp with time zone, p_entity_hash text) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.measure_jobs() FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.measure_jobs() TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.new_id() FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.note_failure(p_tenant_id uuid, p_id uuid, p_error text, p_is_retryable boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.open_run(p_tenant_id uuid, p_id uuid, p_function text, p_grain text, p_at timestamp with time zone, p_entity_hash text, p_input jsonb, p_schedule_id uuid, p_force boolean) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.plan_notifications(p_tenant_id uuid, p_account_ids uuid[], p_recipients text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.plan_notifications(p_tenant_id uuid, p_account_ids uuid[], p_recipients text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.provide_functions(p_runner text, p_names text[], p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.provide_functions(p_runner text, p_names text[], p_lease interval) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.prune_runs(p_tenant_id uuid, p_older_than interval, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.prune_runs(p_tenant_id uuid, p_older_than interval, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.put_builtin(p_tenant_id uuid, p_id uuid, p_name text, p_grain text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.put_builtin(p_tenant_id uuid, p_id uuid, p_name text, p_grain text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.put_function(p_tenant_id uuid, p_id uuid, p_name text, p_kind text, p_target text, p_grain text, p_timeout_seconds integer, p_max_retries integer, p_initial_delay_ms integer, p_backoff_multiplier double precision, p_max_delay_ms integer, p_sealed_secret bytea, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.put_function(p_tenant_id uuid, p_id uuid, p_name text, p_kind text, p_target text, p_grain text, p_timeout_seconds integer, p_max_retries integer, p_initial_delay_ms integer, p_backoff_multiplier double precision, p_max_delay_ms integer, p_sealed_secret bytea, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.put_schedule(p_tenant_id uuid, p_id uuid, p_function text, p_cron text, p_timezone text, p_grain text, p_input jsonb, p_entities json, p_entity_hash text, p_depends_on text[], p_misfire text, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.put_schedule(p_tenant_id uuid, p_id uuid, p_function text, p_cron text, p_timezone text, p_grain text, p_input jsonb, p_entities json, p_entity_hash text, p_depends_on text[], p_misfire text, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.raise_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text, p_title text, p_severity text, p_evidence jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.raise_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text, p_title text, p_severity text, p_evidence jsonb) TO postrider_app;
GRANT ALL ON FUNCTION jobs.raise_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text, p_title text, p_severity text, p_evidence jsonb) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.recommendation(p_alert_config_id text) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.recover_runs(p_tenant_id uuid, p_lease interval, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.recover_runs(p_tenant_id uuid, p_lease interval, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.remove_function(p_tenant_id uuid, p_name text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.remove_function(p_tenant_id uuid, p_name text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.remove_schedule(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.remove_schedule(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.reserve_notifications(p_tenant_id uuid, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.reserve_notifications(p_tenant_id uuid, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.resolve_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.resolve_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text) TO postrider_app;
GRANT ALL ON FUNCTION jobs.resolve_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.resolve_source(p_tenant_id uuid, p_source_type text, p_source_id uuid, p_by text, p_note text) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.resolve_sync_error(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.resolve_sync_error(p_tenant_id uuid, p_id uuid, p_note text, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.retry_run(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.retry_run(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.run_with_lock_key(p_tenant_id uuid, p_lock_key text) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.settle_notification(p_tenant_id uuid, p_id uuid, p_claim integer, p_verdict text, p_message_id text, p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.settle_notification(p_tenant_id uuid, p_id uuid, p_claim integer, p_verdict text, p_message_id text, p_error text) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.switch_schedule(p_tenant_id uuid, p_id uuid, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.switch_schedule(p_tenant_id uuid, p_id uuid, p_enabled boolean, p_next_fire_at timestamp with time zone, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.tenants_with_due_runs(p_limit integer, p_per_tenant integer, p_tenant_ids uuid[], p_per_tenant_ids integer[], p_kinds text[], p_builtins text[], p_after uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.tenants_with_due_runs(p_limit integer, p_per_tenant integer, p_tenant_ids uuid[], p_per_tenant_ids integer[], p_kinds text[], p_builtins text[], p_after uuid) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.tenants_with_old_runs(p_older_than interval) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.tenants_with_old_runs(p_older_than interval) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.tenants_with_stale_runs(p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.tenants_with_stale_runs(p_lease interval) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.tenants_with_waiting_firings(p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.tenants_with_waiting_firings(p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION jobs.unmet_dependencies(p_tenant_id uuid, p_depends_on text[], p_grain text, p_fire_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION jobs.which_ended(p_tenant_ids uuid[], p_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.which_ended(p_tenant_ids uuid[], p_ids uuid[]) TO postrider_app;

REVOKE ALL ON FUNCTION jobs.why_waiting(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.why_waiting(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone) TO postrider_app;
GRANT ALL ON FUNCTION jobs.why_waiting(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone) TO postrider_worker;
GRANT ALL ON FUNCTION jobs.why_waiting(p_tenant_id uuid, p_schedule_id uuid, p_fire_at timestamp with time zone) TO postrider_read;

REVOKE ALL ON FUNCTION jobs.withdraw_functions(p_runner text) FROM PUBLIC;
GRANT ALL ON FUNCTION jobs.withdraw_functions(p_runner text) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.claim_outbox_events(p_processor_id text, p_batch_size integer) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.complete_outbox_event(p_event_id bigint, p_processor_id text, p_success boolean, p_error text) TO postrider_worker;

REVOKE ALL ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) TO postrider_app;
GRANT ALL ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) TO postrider_worker;
GRANT ALL ON FUNCTION m10_recovery.publish_outbox(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb) TO postrider_publish;

REVOKE ALL ON FUNCTION tenancy.account_of_callback(p_tenant_id uuid, p_account_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.account_of_callback(p_tenant_id uuid, p_account_id uuid) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.named_tenant_id() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.named_tenant_id() TO postrider_app;
GRANT ALL ON FUNCTION tenancy.named_tenant_id() TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.named_tenant_id() TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.verified_tenant_id(p_tenant_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.verified_tenant_id(p_tenant_id uuid) TO postrider_app;
GRANT ALL ON FUNCTION tenancy.verified_tenant_id(p_tenant_id uuid) TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.verified_tenant_id(p_tenant_id uuid) TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.current_tenant_id() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.current_tenant_id() TO postrider_app;
GRANT ALL ON FUNCTION tenancy.current_tenant_id() TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.current_tenant_id() TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.acts_for_server() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.add_context_key() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.adopt_tenant(p_tenant_id uuid, p_epoch_id uuid, p_copied_after timestamp with time zone, p_actor text, OUT items bigint, OUT replies bigint, OUT campaigns bigint, OUT firings bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.authenticate_api_key(p_tenant_id uuid, p_key_hash bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.authenticate_api_key(p_tenant_id uuid, p_key_hash bytea) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.authenticate_session(p_tenant_id uuid, p_token_hash bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.authenticate_session(p_tenant_id uuid, p_token_hash bytea) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.begin_epoch(p_cause text, p_reason text, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.begin_removal(p_tenant_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.begin_request(p_tenant_id uuid, p_key text, p_fingerprint bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.begin_request(p_tenant_id uuid, p_key text, p_fingerprint bytea) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.confirm_process(p_witness_id uuid, p_timeline integer) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.confirm_process(p_witness_id uuid, p_timeline integer) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.context_key() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.context_key() TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.count_unfinished(OUT reserved_items bigint, OUT begun_items bigint, OUT replies bigint, OUT notifications bigint, OUT schedules bigint, OUT firings bigint, OUT campaigns bigint, OUT events bigint, OUT job_runs bigint) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.create_api_key(p_tenant_id uuid, p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamp with time zone, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.create_api_key(p_tenant_id uuid, p_id uuid, p_name text, p_role text, p_hint text, p_key_hash bytea, p_expires_at timestamp with time zone, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.create_provider_account(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.create_provider_account(p_tenant_id uuid, p_id uuid, p_workspace_id uuid, p_name text, p_provider text, p_settings jsonb, p_sealed_secret bytea, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.create_tenant(p_tenant_id uuid, p_workspace_id uuid, p_name text, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.database_identity(OUT system_identifier text, OUT database_oid bigint, OUT database_name text, OUT table_oid bigint, OUT timeline integer, OUT lsn pg_lsn) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.end_session(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.end_session(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.enrol(p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.enrol(p_actor text) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.finish_removal(p_tenant_id uuid, p_tables text[], p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.finish_request(p_tenant_id uuid, p_key text, p_status smallint, p_location text, p_body text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.finish_request(p_tenant_id uuid, p_key text, p_status smallint, p_location text, p_body text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.key_id_of(p_sealed bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.limit_idle_time(p_limit text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.limit_provider_account(p_tenant_id uuid, p_id uuid, p_limits jsonb, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.limit_provider_account(p_tenant_id uuid, p_id uuid, p_limits jsonb, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.make_login_code(p_tenant_id uuid, p_key_id uuid, p_code_hash bytea, p_name text, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.mark_process(p_witness_id uuid, p_epoch_id uuid, p_process text, p_timeline integer, p_is_stopping boolean, OUT mark bigint, OUT lsn bigint) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.mark_process(p_witness_id uuid, p_epoch_id uuid, p_process text, p_timeline integer, p_is_stopping boolean, OUT mark bigint, OUT lsn bigint) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.master_key_check() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.master_key_check() TO postrider_app;
GRANT ALL ON FUNCTION tenancy.master_key_check() TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.new_hmac_key(OUT key bytea, OUT inner_pad bytea, OUT outer_pad bytea) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.note_new_secret() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.open_session(p_tenant_id uuid, p_id uuid, p_key_id uuid, p_token_hash bytea, p_name text, p_idle_for interval, p_lifetime interval, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.open_session(p_tenant_id uuid, p_id uuid, p_key_id uuid, p_token_hash bytea, p_name text, p_idle_for interval, p_lifetime interval, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.protect(p_table regclass, p_tenant_column text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.prune_requests(p_tenant_id uuid, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.prune_requests(p_tenant_id uuid, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.prune_sessions(p_tenant_id uuid, p_limit integer) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.prune_sessions(p_tenant_id uuid, p_limit integer) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.system_tenant_id() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.system_tenant_id() TO postrider_app;
GRANT ALL ON FUNCTION tenancy.system_tenant_id() TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.system_tenant_id() TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.publishing_tenant_id() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.read_installation(p_witness_id uuid, p_epoch_id uuid, p_reservation_tenant_ids uuid[], p_reservation_ids uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.read_installation(p_witness_id uuid, p_epoch_id uuid, p_reservation_tenant_ids uuid[], p_reservation_ids uuid[]) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.read_overview(p_tenant_id uuid, p_stuck_after integer, p_without_person text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.read_overview(p_tenant_id uuid, p_stuck_after integer, p_without_person text[]) TO postrider_app;
GRANT ALL ON FUNCTION tenancy.read_overview(p_tenant_id uuid, p_stuck_after integer, p_without_person text[]) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.refuse_change() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.refuse_other_master_key() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.refuse_removal_with_events() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.refuse_unless_erased_or_removed() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.register_master_key(p_sealed_check bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.register_master_key(p_sealed_check bytea) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.remove_provider_account(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.remove_provider_account(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.remove_rows(p_tenant_id uuid, p_table text, p_limit integer) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.replace_master_key(p_sealed_check bytea, p_action text, p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.require_durable_commit() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.require_sending_allowed() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.require_tenant(p_tenant_id uuid) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.required_tenant_id() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.required_tenant_id() TO postrider_app;
GRANT ALL ON FUNCTION tenancy.required_tenant_id() TO postrider_worker;
GRANT ALL ON FUNCTION tenancy.required_tenant_id() TO postrider_read;

REVOKE ALL ON FUNCTION tenancy.reseal(p_kinds text[], p_tenant_ids uuid[], p_ids uuid[], p_old bytea[], p_new bytea[]) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.revoke_api_key(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.revoke_api_key(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.revoke_session(p_tenant_id uuid, p_id uuid, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.revoke_session(p_tenant_id uuid, p_id uuid, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.rotate_context_key(p_actor text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.rotate_provider_account(p_tenant_id uuid, p_id uuid, p_sealed_secret bytea, p_actor text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.rotate_provider_account(p_tenant_id uuid, p_id uuid, p_sealed_secret bytea, p_actor text) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.sealed_keys() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.sealed_keys() TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.sealed_values() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.sealing_key_check() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.sealing_key_check() TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.send_hint(p_channel text) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.sending_refusal() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.skip_firings(p_tenant_id uuid, p_schedule_id uuid, p_due timestamp with time zone, p_version integer, p_skipped_at timestamp with time zone, p_next_fire_at timestamp with time zone) FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.suspect(p_epoch_id uuid, p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.suspect(p_epoch_id uuid, p_reason text) TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.tenant_tables() FROM PUBLIC;

REVOKE ALL ON FUNCTION tenancy.tenants_with_old_requests() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.tenants_with_old_requests() TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.tenants_with_old_sessions() FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.tenants_with_old_sessions() TO postrider_worker;

REVOKE ALL ON FUNCTION tenancy.use_login_code(p_tenant_id uuid, p_code_hash bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION tenancy.use_login_code(p_tenant_id uuid, p_code_hash bytea) TO postrider_app;

REVOKE ALL ON FUNCTION tenancy.was_deleted(p_tenant_id uuid, p_item_id uuid) FROM PUBLIC;

GRANT SELECT(id) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(id) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(id) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(tenant_id) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(tenant_id) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(tenant_id) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(account_id) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(account_id) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(account_id) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(kind) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(kind) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(kind) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(url) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(url) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(url) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(timeout_seconds) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(timeout_seconds) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(timeout_seconds) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(required_role) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(required_role) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(required_role) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(sentinel) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(sentinel) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(sentinel) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT(created_at) ON TABLE channels.channel_executors TO postrider_app;
GRANT SELECT(created_at) ON TABLE channels.channel_executors TO postrider_worker;
GRANT SELECT(created_at) ON TABLE channels.channel_executors TO postrider_read;

GRANT SELECT ON TABLE channels.channel_links TO postrider_app;
GRANT SELECT ON TABLE channels.channel_links TO postrider_worker;
GRANT SELECT ON TABLE channels.channel_links TO postrider_read;

GRANT SELECT ON TABLE channels.channel_messages TO postrider_app;
GRANT SELECT ON TABLE channels.channel_messages TO postrider_worker;
GRANT SELECT ON TABLE channels.channel_messages TO postrider_read;

GRANT SELECT ON TABLE channels.channel_outbox TO postrider_app;
GRANT SELECT ON TABLE channels.channel_outbox TO postrider_worker;
GRANT SELECT ON TABLE channels.channel_outbox TO postrider_read;

GRANT SELECT ON TABLE events.sink_sets TO postrider_worker;
GRANT SELECT ON TABLE events.sink_sets TO postrider_read;

GRANT SELECT ON TABLE execution.account_states TO postrider_app;
GRANT SELECT ON TABLE execution.account_states TO postrider_worker;
GRANT SELECT ON TABLE execution.account_states TO postrider_read;

GRANT SELECT ON TABLE execution.assets TO postrider_app;
GRANT SELECT ON TABLE execution.assets TO postrider_worker;
GRANT SELECT ON TABLE execution.assets TO postrider_read;

GRANT SELECT ON TABLE execution.campaign_audit_log TO postrider_app;
GRANT SELECT ON TABLE execution.campaign_audit_log TO postrider_worker;
GRANT SELECT ON TABLE execution.campaign_audit_log TO postrider_read;

GRANT SELECT ON TABLE execution.campaign_events TO postrider_app;
GRANT SELECT ON TABLE execution.campaign_events TO postrider_worker;
GRANT SELECT ON TABLE execution.campaign_events TO postrider_read;

GRANT SELECT ON TABLE execution.campaign_phases TO postrider_app;
GRANT SELECT ON TABLE execution.campaign_phases TO postrider_worker;
GRANT SELECT ON TABLE execution.campaign_phases TO postrider_read;

GRANT SELECT ON TABLE execution.campaign_runs TO postrider_app;
GRANT SELECT ON TABLE execution.campaign_runs TO postrider_worker;
GRANT SELECT ON TABLE execution.campaign_runs TO postrider_read;

GRANT SELECT ON TABLE execution.campaigns TO postrider_app;
GRANT SELECT ON TABLE execution.campaigns TO postrider_worker;
GRANT SELECT ON TABLE execution.campaigns TO postrider_read;

GRANT SELECT ON TABLE execution.channel_outbox TO postrider_app;
GRANT SELECT ON TABLE execution.channel_outbox TO postrider_worker;
GRANT SELECT ON TABLE execution.channel_outbox TO postrider_read;

GRANT SELECT ON TABLE execution.doubts TO postrider_app;
GRANT SELECT ON TABLE execution.doubts TO postrider_worker;
GRANT SELECT ON TABLE execution.doubts TO postrider_read;

GRANT SELECT ON TABLE execution.erasures TO postrider_app;
GRANT SELECT ON TABLE execution.erasures TO postrider_worker;
GRANT SELECT ON TABLE execution.erasures TO postrider_read;

GRANT SELECT ON TABLE execution.job_queue TO postrider_app;
GRANT SELECT ON TABLE execution.job_queue TO postrider_worker;
GRANT SELECT ON TABLE execution.job_queue TO postrider_read;

GRANT INSERT ON TABLE execution.lead_intake TO postrider_app;

GRANT SELECT ON TABLE execution.lead_list_members TO postrider_app;
GRANT SELECT ON TABLE execution.lead_list_members TO postrider_worker;
GRANT SELECT ON TABLE execution.lead_list_members TO postrider_read;

GRANT SELECT ON TABLE execution.lead_lists TO postrider_app;
GRANT SELECT ON TABLE execution.lead_lists TO postrider_worker;
GRANT SELECT ON TABLE execution.lead_lists TO postrider_read;

GRANT SELECT ON TABLE execution.leads TO postrider_app;
GRANT SELECT ON TABLE execution.leads TO postrider_worker;
GRANT SELECT ON TABLE execution.leads TO postrider_read;

GRANT SELECT ON TABLE execution.provider_callbacks TO postrider_app;
GRANT SELECT ON TABLE execution.provider_callbacks TO postrider_worker;
GRANT SELECT ON TABLE execution.provider_callbacks TO postrider_read;

GRANT SELECT ON TABLE execution.run_archives TO postrider_app;
GRANT SELECT ON TABLE execution.run_archives TO postrider_worker;
GRANT SELECT ON TABLE execution.run_archives TO postrider_read;

GRANT SELECT ON TABLE jobs.alert_instances TO postrider_app;
GRANT SELECT ON TABLE jobs.alert_instances TO postrider_worker;
GRANT SELECT ON TABLE jobs.alert_instances TO postrider_read;

GRANT SELECT ON TABLE jobs.alert_notifications TO postrider_app;
GRANT SELECT ON TABLE jobs.alert_notifications TO postrider_worker;
GRANT SELECT ON TABLE jobs.alert_notifications TO postrider_read;

GRANT SELECT ON TABLE jobs.decision_cards TO postrider_app;
GRANT SELECT ON TABLE jobs.decision_cards TO postrider_worker;
GRANT SELECT ON TABLE jobs.decision_cards TO postrider_read;

GRANT SELECT(id) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(id) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(id) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(tenant_id) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(tenant_id) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(tenant_id) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(name) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(name) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(name) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(kind) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(kind) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(kind) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(target) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(target) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(target) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(grain) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(grain) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(grain) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(timeout_seconds) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(timeout_seconds) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(timeout_seconds) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(max_retries) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(max_retries) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(max_retries) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(initial_delay_ms) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(initial_delay_ms) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(initial_delay_ms) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(backoff_multiplier) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(backoff_multiplier) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(backoff_multiplier) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(max_delay_ms) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(max_delay_ms) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(max_delay_ms) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(created_at) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(created_at) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(created_at) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT(updated_at) ON TABLE jobs.functions TO postrider_app;
GRANT SELECT(updated_at) ON TABLE jobs.functions TO postrider_worker;
GRANT SELECT(updated_at) ON TABLE jobs.functions TO postrider_read;

GRANT SELECT ON TABLE jobs.job_runs TO postrider_app;
GRANT SELECT ON TABLE jobs.job_runs TO postrider_worker;
GRANT SELECT ON TABLE jobs.job_runs TO postrider_read;

GRANT SELECT ON TABLE jobs.job_health TO postrider_app;
GRANT SELECT ON TABLE jobs.job_health TO postrider_worker;
GRANT SELECT ON TABLE jobs.job_health TO postrider_read;

GRANT SELECT ON TABLE jobs.provided_functions TO postrider_app;
GRANT SELECT ON TABLE jobs.provided_functions TO postrider_worker;
GRANT SELECT ON TABLE jobs.provided_functions TO postrider_read;

GRANT SELECT ON TABLE jobs.schedule_firings TO postrider_app;
GRANT SELECT ON TABLE jobs.schedule_firings TO postrider_worker;
GRANT SELECT ON TABLE jobs.schedule_firings TO postrider_read;

GRANT SELECT ON TABLE jobs.schedules TO postrider_app;
GRANT SELECT ON TABLE jobs.schedules TO postrider_worker;
GRANT SELECT ON TABLE jobs.schedules TO postrider_read;

GRANT SELECT ON TABLE jobs.sync_errors TO postrider_app;
GRANT SELECT ON TABLE jobs.sync_errors TO postrider_worker;
GRANT SELECT ON TABLE jobs.sync_errors TO postrider_read;

GRANT SELECT ON TABLE m10_recovery.outbox TO postrider_app;
GRANT SELECT ON TABLE m10_recovery.outbox TO postrider_worker;
GRANT SELECT ON TABLE m10_recovery.outbox TO postrider_read;

GRANT SELECT ON TABLE postrider.catalogue TO postrider_app;
GRANT SELECT ON TABLE postrider.catalogue TO postrider_worker;
GRANT SELECT ON TABLE postrider.catalogue TO postrider_read;

GRANT SELECT ON TABLE postrider.sources TO postrider_app;
GRANT SELECT ON TABLE postrider.sources TO postrider_worker;
GRANT SELECT ON TABLE postrider.sources TO postrider_read;

GRANT SELECT(id) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(id) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(tenant_id) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(tenant_id) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(name) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(name) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(role) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(role) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(hint) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(hint) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(created_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(created_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(expires_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(expires_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(revoked_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(revoked_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT(last_used_at) ON TABLE tenancy.api_keys TO postrider_app;
GRANT SELECT(last_used_at) ON TABLE tenancy.api_keys TO postrider_read;

GRANT SELECT ON TABLE tenancy.audit_log TO postrider_app;
GRANT SELECT ON TABLE tenancy.audit_log TO postrider_worker;
GRANT SELECT ON TABLE tenancy.audit_log TO postrider_read;

GRANT SELECT ON TABLE tenancy.provider_accounts TO postrider_worker;

GRANT SELECT(id) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(id) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(tenant_id) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(tenant_id) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(workspace_id) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(workspace_id) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(name) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(name) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(provider) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(provider) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(settings) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(settings) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(created_at) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(created_at) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(updated_at) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(updated_at) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(limits) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(limits) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(secret_set_at) ON TABLE tenancy.provider_accounts TO postrider_app;
GRANT SELECT(secret_set_at) ON TABLE tenancy.provider_accounts TO postrider_read;

GRANT SELECT(id) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(id) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT(tenant_id) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(tenant_id) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT(key_id) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(key_id) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT(name) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(name) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT(created_at) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(created_at) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT(last_seen_at) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(last_seen_at) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT(idle_for) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(idle_for) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT(expires_at) ON TABLE tenancy.sessions TO postrider_app;
GRANT SELECT(expires_at) ON TABLE tenancy.sessions TO postrider_read;

GRANT SELECT ON TABLE tenancy.tenants TO postrider_app;
GRANT SELECT ON TABLE tenancy.tenants TO postrider_worker;
GRANT SELECT ON TABLE tenancy.tenants TO postrider_read;

GRANT SELECT ON TABLE tenancy.workspaces TO postrider_app;
GRANT SELECT ON TABLE tenancy.workspaces TO postrider_worker;
GRANT SELECT ON TABLE tenancy.workspaces TO postrider_read;
