-- Receiving: a message is written down, executed outside the database, and ends with its reply in the outbox. Somebody waits for
-- the answer to each step, so none waits long for a lock: a reply that cannot be enqueued in time is kept.
-- Safe beside running workers: it adds functions and touches no table.

-- Puts a reply into the outbox and ends its message, in the caller's transaction: both or neither.
create function channels.enqueue_reply(p_message channels.channel_messages, p_reply_id uuid, p_payload jsonb, p_max_attempts integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into channels.channel_outbox
           (id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload, max_attempts, correlation_id)
    values (p_reply_id, p_message.tenant_id, p_message.id, p_message.account_id, p_message.provider, p_message.recipient_id,
            p_payload, p_max_attempts, p_message.correlation_id);
    update channels.channel_messages
       set status = 'executed',
           reply = null,
           last_error = null,
           is_executing = false,
           leased_until = null,
           updated_at = now()
     where id = p_message.id;
end
$$;

-- Decides who may have a message executed, and takes the right to execute it. What `verdict` says:
--   execute    the caller executes it, under this number of execution, until its time is over
--   denied     nobody is linked to the sender, or who is may not
create function channels.admit_message(p_message channels.channel_messages, p_lease interval)
returns table (verdict text, execution integer, user_id text, role text)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_link     channels.channel_links;
    v_required text;
    v_status   text;
    v_reason   text;
begin
    select executor.required_role
      into v_required
      from channels.channel_executors as executor
     where executor.tenant_id = p_message.tenant_id
       and (executor.account_id = p_message.account_id or executor.account_id is null)
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
     where link.tenant_id = p_message.tenant_id
       and link.account_id = p_message.account_id
       and link.sender_id = p_message.sender_id;
    if not found then
        v_status := 'denied_unlinked';
        v_reason := 'nobody is linked to this sender';
    elsif array_position(array['viewer', 'operator', 'admin'], v_link.role)
          < array_position(array['viewer', 'operator', 'admin'], v_required) then
        v_status := 'denied_rbac';
        v_reason := format('%s is %s, and it takes %s', v_link.user_id, v_link.role, v_required);
    end if;
    if v_status is not null then
        update channels.channel_messages as message
           set status = v_status,
               user_id = v_link.user_id,
               role = v_link.role,
               last_error = v_reason,
               is_executing = false,
               leased_until = null,
               updated_at = now()
         where message.id = p_message.id;
        return query select 'denied'::text, p_message.executions, v_link.user_id, v_link.role;
        return;
    end if;
    return query
        update channels.channel_messages as message
           set executions = message.executions + 1,
               is_executing = true,
               leased_until = now() + p_lease,
               user_id = v_link.user_id,
               role = v_link.role,
               updated_at = now()
         where message.id = p_message.id
        returning 'execute'::text, message.executions, message.user_id, message.role;
end
$$;

-- Writes down what a provider delivered, in the tenant of the context. What `verdict` says, beside `execute` and `denied`:
--   duplicate  it was delivered before, and needs nothing now
--   enqueued   it had been executed before, and its kept reply is in the outbox now
create function channels.receive_message(
    p_account_id uuid, p_id uuid, p_reply_id uuid, p_provider_message_id text, p_sender_id text, p_recipient_id text,
    p_thread text, p_text text, p_correlation_id uuid, p_lease interval, p_max_attempts integer)
returns table (message_id uuid, verdict text, execution integer, user_id text, role text, correlation_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_provider  text;
    v_message   channels.channel_messages;
begin
    select account.provider
      into v_provider
      from tenancy.provider_accounts as account
     where account.tenant_id = v_tenant_id
       and account.id = p_account_id;
    if not found then
        raise exception 'there is no such account' using errcode = 'no_data_found';
    end if;
    -- In one statement, so that it is the constraint's own index by which an earlier delivery is found.
    insert into channels.channel_messages as message
           (id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, thread, text, correlation_id)
    values (p_id, v_tenant_id, p_account_id, v_provider, p_provider_message_id, p_sender_id, p_recipient_id, p_thread, p_text,
            p_correlation_id)
    on conflict on constraint channel_messages_one_per_delivery do update
       set deliveries = message.deliveries + 1
    returning message.* into v_message;
    if v_message.deliveries > 1 then
        if v_message.status = 'dispatch_failed' and v_message.reply is not null then
            perform channels.enqueue_reply(v_message, p_reply_id, v_message.reply, p_max_attempts);
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
          from channels.admit_message(v_message, p_lease) as admitted;
end
$$;

-- How many messages this sender wrote in the last minute, up to a thousand.
create function channels.recent_messages(p_account_id uuid, p_sender_id text)
returns integer
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select count(*)::integer
      from (select from channels.channel_messages as message
             where message.tenant_id = tenancy.required_tenant_id()
               and message.account_id = p_account_id
               and message.sender_id = p_sender_id
               and message.created_at > now() - interval '1 minute'
             limit 1000) as recent
$$;

-- The message that this execution may still end, locked. Nothing when another one has taken it up, or it is over.
create function channels.held_message(p_message_id uuid, p_execution integer)
returns setof channels.channel_messages
language sql
set search_path = pg_catalog, pg_temp
as $$
    select message.*
      from channels.channel_messages as message
     where message.tenant_id = tenancy.required_tenant_id()
       and message.id = p_message_id
       and message.executions = p_execution
       and message.status in ('accepted', 'dispatch_failed')
       for update
$$;

-- Ends a message with its reply. False when this execution does not hold it any more: then nothing changed.
create function channels.finish_message(
    p_message_id uuid, p_execution integer, p_reply_id uuid, p_payload jsonb, p_max_attempts integer)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
    v_message channels.channel_messages;
begin
    select * into v_message from channels.held_message(p_message_id, p_execution);
    if not found then
        return false;
    end if;
    perform channels.enqueue_reply(v_message, p_reply_id, p_payload, p_max_attempts);
    return true;
end
$$;

-- Ends a message that the sentinel does not want executed.
create function channels.deny_message(p_message_id uuid, p_execution integer, p_reason text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
    update channels.channel_messages as message
       set status = 'denied_sentinel',
           last_error = left(p_reason, 1000),
           is_executing = false,
           leased_until = null,
           updated_at = now()
     where message.id = (select held.id from channels.held_message(p_message_id, p_execution) as held);
    return found;
end
$$;

-- A message could not be executed, or its reply could not be put into the outbox: then the reply is kept. Somebody tries again, if the
-- provider does not deliver the message before; it may have been told already that nothing more is needed. A reply that is kept is
-- tried every minute. A message is executed again after one minute, two, four and eight, and then it is left to its provider and to people.
create function channels.fail_message(p_message_id uuid, p_execution integer, p_reply jsonb, p_error text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
begin
    update channels.channel_messages as message
       set status = 'dispatch_failed',
           reply = p_reply,
           last_error = left(p_error, 1000),
           is_executing = false,
           leased_until = case
                              when p_reply is not null then now() + interval '1 minute'
                              when p_execution < 5 then now() + interval '1 minute' * power(2, p_execution - 1)
                          end,
           updated_at = now()
     where message.id = (select held.id from channels.held_message(p_message_id, p_execution) as held);
    return found;
end
$$;

-- Takes up to so many messages whose execution was not ended in time: the process that executed them is gone.
create function channels.claim_unfinished_messages(p_limit integer, p_lease interval)
returns table (message_id uuid, tenant_id uuid, account_id uuid, provider text, sender_id text, recipient_id text, thread text,
               text text, verdict text, execution integer, user_id text, role text, correlation_id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_message channels.channel_messages;
begin
    for v_message in
        select message.*
          from channels.channel_messages as message
         where message.leased_until < now()
           and message.reply is null
         order by message.leased_until
         limit p_limit
           for update skip locked
    loop
        if not exists (select from tenancy.provider_accounts as account
                        where account.tenant_id = v_message.tenant_id and account.id = v_message.account_id) then
            update channels.channel_messages as message
               set status = 'dispatch_failed',
                   last_error = 'its account was removed',
                   is_executing = false,
                   leased_until = null,
                   updated_at = now()
             where message.id = v_message.id;
            continue;
        end if;
        -- An account whose executor was taken away waits for another one.
        if not exists (select from channels.channel_executors as executor
                        where executor.tenant_id = v_message.tenant_id
                          and (executor.account_id = v_message.account_id or executor.account_id is null)) then
            update channels.channel_messages as message
               set is_executing = false,
                   leased_until = now() + interval '1 minute'
             where message.id = v_message.id;
            continue;
        end if;
        return query
            select v_message.id, v_message.tenant_id, v_message.account_id, v_message.provider, v_message.sender_id,
                   v_message.recipient_id, v_message.thread, v_message.text, admitted.verdict, admitted.execution,
                   admitted.user_id, admitted.role, v_message.correlation_id
              from channels.admit_message(v_message, p_lease) as admitted;
    end loop;
end
$$;

-- Has a message that failed taken up again now, for a person. False when the context's tenant has no such message that failed, or it is
-- being executed.
create function channels.retry_message(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '10s'
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update channels.channel_messages as message
       set is_executing = false,
           leased_until = now(),
           updated_at = now()
     where message.tenant_id = v_tenant_id
       and message.id = p_id
       and message.status = 'dispatch_failed'
       and not (message.is_executing and message.leased_until > now());
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'message.retried', 'message:' || p_id);
    return true;
end
$$;

-- Puts kept replies into the outbox, as many as there are new ids for them, and says how many. One that the outbox refuses waits a
-- minute, so that it is not in the way of the others.
create function channels.enqueue_kept_replies(p_reply_ids uuid[], p_max_attempts integer)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_message channels.channel_messages;
    v_count   integer := 0;
begin
    for v_message in
        select message.*
          from channels.channel_messages as message
         where message.leased_until < now()
           and message.reply is not null
         order by message.leased_until
         limit cardinality(p_reply_ids)
           for update skip locked
    loop
        begin
            perform channels.enqueue_reply(v_message, p_reply_ids[v_count + 1], v_message.reply, p_max_attempts);
            v_count := v_count + 1;
        exception when integrity_constraint_violation then
            update channels.channel_messages as message
               set last_error = left('its reply cannot be enqueued: ' || sqlerrm, 1000),
                   leased_until = now() + interval '1 minute',
                   updated_at = now()
             where message.id = v_message.id;
        end;
    end loop;
    return v_count;
end
$$;

-- What a provider tells about a reply without being asked, in the tenant of the context. What proves that it arrived keeps a
-- reply from being sent again. False when the account has no such reply.
create function channels.record_delivery(
    p_account_id uuid, p_reply_id uuid, p_provider_message_id text, p_status text, p_proves_action boolean, p_at timestamptz,
    p_error text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update channels.channel_outbox as reply
       set provider_message_id = case when p_proves_action then coalesce(reply.provider_message_id, left(p_provider_message_id, 512))
                                      else reply.provider_message_id end,
           -- Reports overtake each other.
           delivery_status = case when reply.delivery_status_at > coalesce(p_at, now()) then reply.delivery_status
                                  else left(p_status, 64) end,
           delivery_error = case when reply.delivery_status_at > coalesce(p_at, now()) then reply.delivery_error
                                 else left(p_error, 1000) end,
           delivery_status_at = greatest(reply.delivery_status_at, coalesce(p_at, now())),
           -- A dead reply died when it died.
           updated_at = case when reply.status = 'dead' then reply.updated_at else now() end
     where reply.tenant_id = tenancy.required_tenant_id()
       and reply.account_id = p_account_id
       and reply.id = p_reply_id;
    return found;
end
$$;

-- Says who a sender is.
create function channels.link_sender(
    p_id uuid, p_account_id uuid, p_sender_id text, p_user_id text, p_role text, p_actor text)
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_id        uuid;
begin
    insert into channels.channel_links as link (id, tenant_id, account_id, sender_id, user_id, role)
    values (p_id, v_tenant_id, p_account_id, p_sender_id, p_user_id, p_role)
    on conflict on constraint channel_links_one_per_sender do update
       set user_id = excluded.user_id,
           role = excluded.role,
           updated_at = now()
    returning link.id into v_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'sender.linked', 'link:' || v_id, p_user_id || ' as ' || p_role);
    return v_id;
end
$$;

-- Forgets who a sender is. False when there is no such link.
create function channels.unlink_sender(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    delete from channels.channel_links as link where link.tenant_id = v_tenant_id and link.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'sender.unlinked', 'link:' || p_id);
    return true;
end
$$;

-- Says what executes the messages of an account, or of all accounts that have nothing of their own.
create function channels.put_executor(
    p_id uuid, p_account_id uuid, p_kind text, p_url text, p_timeout_seconds integer, p_sealed_secret bytea,
    p_required_role text, p_sentinel jsonb, p_actor text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    -- Two at once: the second one replaces the first.
    perform from tenancy.tenants as tenant where tenant.id = v_tenant_id for no key update;
    delete from channels.channel_executors as executor
     where executor.tenant_id = v_tenant_id
       and executor.account_id is not distinct from p_account_id;
    insert into channels.channel_executors
           (id, tenant_id, account_id, kind, url, timeout_seconds, sealed_secret, required_role, sentinel)
    values (p_id, v_tenant_id, p_account_id, p_kind, p_url, p_timeout_seconds, p_sealed_secret, p_required_role, p_sentinel);
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'executor.set', 'executor:' || p_id, p_kind);
end
$$;

-- What executes the messages of an account of the context's tenant. The secret is sealed: whoever executes has the master key.
create function channels.executor_of(p_account_id uuid)
returns table (id uuid, kind text, url text, timeout_seconds integer, sealed_secret bytea, sentinel jsonb)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select executor.id, executor.kind, executor.url, executor.timeout_seconds, executor.sealed_secret, executor.sentinel
      from channels.channel_executors as executor
     where executor.tenant_id = tenancy.required_tenant_id()
       and (executor.account_id = p_account_id or executor.account_id is null)
     order by executor.account_id nulls last
     limit 1
$$;

-- Takes an executor away: messages are refused from then on. False when there is none.
create function channels.remove_executor(p_id uuid, p_actor text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    delete from channels.channel_executors as executor where executor.tenant_id = v_tenant_id and executor.id = p_id;
    if not found then
        return false;
    end if;
    insert into tenancy.audit_log (tenant_id, actor, action, subject)
    values (v_tenant_id, p_actor, 'executor.removed', 'executor:' || p_id);
    return true;
end
$$;

revoke all on all functions in schema channels from public;
grant execute on function
    channels.receive_message(uuid, uuid, uuid, text, text, text, text, text, uuid, interval, integer),
    channels.record_delivery(uuid, uuid, text, text, boolean, timestamptz, text),
    channels.retry_message(uuid, text),
    channels.link_sender(uuid, uuid, text, text, text, text),
    channels.unlink_sender(uuid, text),
    channels.put_executor(uuid, uuid, text, text, integer, bytea, text, jsonb, text),
    channels.remove_executor(uuid, text)
    to postrider_app;
grant execute on function
    channels.executor_of(uuid),
    channels.recent_messages(uuid, text),
    channels.finish_message(uuid, integer, uuid, jsonb, integer),
    channels.deny_message(uuid, integer, text),
    channels.fail_message(uuid, integer, jsonb, text)
    to postrider_app, postrider_worker;
grant execute on function
    channels.claim_unfinished_messages(integer, interval),
    channels.enqueue_kept_replies(uuid[], integer)
    to postrider_worker;
