-- Row-level security, triggers that refuse changes, and grants of the chat tables.

-- A table that has its policies keeps them.
select tenancy.protect(wanted.name)
  from (values ('channels.channel_links'::regclass),
               ('channels.channel_executors'),
               ('channels.channel_messages'),
               ('channels.channel_outbox')) as wanted (name)
 where not exists (select from pg_catalog.pg_policy where polrelid = wanted.name);

-- An update that keeps the secret does not fire the trigger, so it does not wait for a rotation of the master key.
create or replace trigger channel_executors_are_sealed_under_one_key
    before insert on channels.channel_executors
    for each row
    when (new.sealed_secret is not null)
    execute function tenancy.refuse_other_master_key();
create or replace trigger channel_executors_stay_sealed_under_one_key
    before update of sealed_secret on channels.channel_executors
    for each row
    when (new.sealed_secret is distinct from old.sealed_secret)
    execute function tenancy.refuse_other_master_key();

create or replace trigger channel_messages_change_as_they_may
    before update of status on channels.channel_messages
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('accepted', 'executed'), ('accepted', 'denied_unlinked'), ('accepted', 'denied_rbac'),
        ('accepted', 'denied_sentinel'), ('accepted', 'dispatch_failed'),
        ('dispatch_failed', 'executed'), ('dispatch_failed', 'denied_unlinked'), ('dispatch_failed', 'denied_rbac'),
        ('dispatch_failed', 'denied_sentinel')))
    execute function tenancy.refuse_change('a message that was executed or denied stays so, and none is accepted twice');
create or replace trigger channel_messages_are_facts
    before update of id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, thread, text,
                     correlation_id, created_at
    on channels.channel_messages
    for each row
    execute function tenancy.refuse_unless_erased_or_removed(
        'a received message stays as it was written', 'sender_id', 'recipient_id', 'thread', 'text', 'user_id', 'last_error');
create or replace trigger channel_messages_open_ones_are_kept
    before delete on channels.channel_messages
    for each row
    when (old.status = 'accepted' or old.leased_until is not null)
    execute function tenancy.refuse_unless_erased_or_removed('a message that is being executed cannot be removed');
create or replace trigger channel_messages_are_never_emptied
    before truncate on channels.channel_messages
    for each statement
    execute function tenancy.refuse_change('messages are removed by prune_messages, once they are over');

create or replace function channels.require_reply()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from channels.channel_outbox as reply
                    where reply.tenant_id = new.tenant_id and reply.channel_message_id = new.id) then
        raise exception 'channels.channel_messages: a message is executed once its reply is in the outbox'
            using errcode = 'check_violation', constraint = tg_name;
    end if;
    return new;
end
$$;
revoke all on function channels.require_reply() from public;
comment on function channels.require_reply() is
    'Trigger function: refuses the status `executed` for a message whose reply is not in channels.channel_outbox.';
create or replace trigger channel_messages_executed_have_a_reply
    before insert or update of status on channels.channel_messages
    for each row
    when (new.status = 'executed')
    execute function channels.require_reply();

create or replace trigger channel_outbox_changes_as_it_may
    before update of status on channels.channel_outbox
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('pending', 'sending'), ('sending', 'sent'), ('sending', 'pending'), ('sending', 'dead'), ('dead', 'pending')))
    execute function tenancy.refuse_change(
        'a reply goes from pending to sending, and from there to sent, pending or dead; what was sent stays sent');
create or replace trigger channel_outbox_replies_are_facts
    before update of id, tenant_id, channel_message_id, account_id, provider, recipient_id, payload,
                     correlation_id, created_at
    on channels.channel_outbox
    for each row
    execute function tenancy.refuse_unless_erased_or_removed(
        'a reply stays as it was made', 'recipient_id', 'payload', 'last_error', 'delivery_error');
create or replace trigger channel_outbox_nothing_accepted_is_lost
    before delete on channels.channel_outbox
    for each row
    when (old.status in ('pending', 'sending'))
    execute function tenancy.refuse_unless_erased_or_removed('a reply that is on its way cannot be removed');
create or replace trigger channel_outbox_is_never_emptied
    before truncate on channels.channel_outbox
    for each statement
    execute function tenancy.refuse_change('replies are removed by prune_messages, once they are over');

grant usage on schema channels to postrider_app, postrider_worker, postrider_read;
grant select on channels.channel_links, channels.channel_messages, channels.channel_outbox
    to postrider_app, postrider_worker, postrider_read;
-- All columns but the secret, which only channels.executor_of returns, sealed.
grant select (id, tenant_id, account_id, kind, url, timeout_seconds, required_role, sentinel, created_at)
    on channels.channel_executors to postrider_app, postrider_worker, postrider_read;
