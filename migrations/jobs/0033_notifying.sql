-- Telling people about alerts: one row and one key for each, and at most one call unless a repeat is harmless.
-- Safe beside running workers: it adds tables and functions and touches no other.

-- Who is told about an alert, and whether they were. One row and one key for each, so that nobody is told twice.
-- `called_at`: a call may have been made under the newest claim. A row that is `queued` and was called is in doubt until its result is known.
create table jobs.alert_notifications (
    id                  uuid        not null default jobs.new_id(),
    tenant_id           uuid        not null,
    alert_instance_id   uuid        not null,
    account_id          uuid        not null,
    recipient           text        not null,
    about               text        not null,
    subject             text        not null,
    body                text        not null,
    status              text        not null default 'queued',
    attempts            integer     not null default 0,
    claims              integer     not null default 0,
    first_called_at     timestamptz,
    called_at           timestamptz,
    in_doubt_since      timestamptz,
    provider_message_id text,
    last_error          text,
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    primary key (id),
    constraint alert_notifications_are_about_an_alert
        foreign key (tenant_id, alert_instance_id) references jobs.alert_instances (tenant_id, id) on delete cascade,
    constraint alert_notifications_one_each unique (tenant_id, alert_instance_id, account_id, recipient, about),
    constraint alert_notifications_about_check check (about in ('raised', 'resolved')),
    constraint alert_notifications_status_check check (status in ('queued', 'sent', 'failed')),
    constraint alert_notifications_recipient_is_bounded check (btrim(recipient) <> '' and octet_length(recipient) <= 255)
);
create index alert_notifications_open on jobs.alert_notifications (tenant_id, created_at) where status = 'queued';
select tenancy.protect('jobs.alert_notifications');
create trigger alert_notifications_change_as_they_may
    before update of status on jobs.alert_notifications
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (('queued', 'sent'), ('queued', 'failed')))
    execute function tenancy.refuse_change('a notification that was sent or given up stays so');

-- Writes down who is to be told about what: of each open alert, and that it is over if they were told of it.
create function jobs.plan_notifications(p_account_ids uuid[], p_recipients text[])
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_planned   integer;
begin
    insert into jobs.alert_notifications (tenant_id, alert_instance_id, account_id, recipient, about, subject, body)
    select v_tenant_id, alert.id, target.account_id, target.recipient, news.about,
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
     where alert.tenant_id = v_tenant_id
       and case news.about
               when 'raised' then alert.status in ('active', 'open', 'triggered')
               else alert.status = 'resolved'
                    and exists (select from jobs.alert_notifications as told
                                 where told.tenant_id = v_tenant_id
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

-- Takes notifications that nobody was told yet: the right to one call each. Once this is committed a call may have been made.
create function jobs.reserve_notifications(p_limit integer)
returns table (id uuid, account_id uuid, recipient text, subject text, body text, claims integer)
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    with due as materialized (
        select due.id
          from jobs.alert_notifications as due
         where due.tenant_id = tenancy.required_tenant_id()
           and due.status = 'queued'
           and due.called_at is null
         order by due.created_at
         limit p_limit
           for update skip locked
    )
    update jobs.alert_notifications as notification
       set claims = notification.claims + 1,
           attempts = notification.attempts + 1,
           called_at = now(),
           first_called_at = coalesce(notification.first_called_at, now()),
           updated_at = now()
      from due
     where notification.id = due.id
    returning notification.id, notification.account_id, notification.recipient, notification.subject, notification.body, notification.claims
$$;

-- Takes notifications of which nobody knows whether they arrived, once the quiet time has passed since the last call.
create function jobs.claim_doubtful_notifications(p_quiet interval, p_limit integer)
returns table (id uuid, account_id uuid, recipient text, subject text, body text, claims integer, first_called_at timestamptz,
               in_doubt_since timestamptz, age_seconds double precision)
language sql
security definer
set search_path = pg_catalog, pg_temp
as $$
    with doubtful as materialized (
        select doubtful.id
          from jobs.alert_notifications as doubtful
         where doubtful.tenant_id = tenancy.required_tenant_id()
           and doubtful.status = 'queued'
           and doubtful.called_at < now() - p_quiet
         order by doubtful.called_at
         limit p_limit
           for update skip locked
    )
    update jobs.alert_notifications as notification
       set claims = notification.claims + 1,
           -- The quiet time begins anew: what is asked or repeated now must be over before the next.
           called_at = now(),
           in_doubt_since = coalesce(notification.in_doubt_since, notification.called_at),
           updated_at = now()
      from doubtful
     where notification.id = doubtful.id
    returning notification.id, notification.account_id, notification.recipient, notification.subject, notification.body,
              notification.claims, notification.first_called_at, notification.in_doubt_since,
              extract(epoch from now() - notification.first_called_at)::double precision
$$;

-- Writes down what became of a call: `sent`, `failed`, `not_sent` (nothing left: it may be called again, a few times), `unknown`.
-- False when it is somebody else's by now; what is proven counts all the same.
create function jobs.settle_notification(p_id uuid, p_claim integer, p_verdict text, p_message_id text, p_error text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update jobs.alert_notifications as notification
       set status = case
                        when p_verdict = 'sent' then 'sent'
                        when p_verdict = 'failed' or (p_verdict = 'not_sent' and notification.attempts >= 5) then 'failed'
                        else 'queued'
                    end,
           called_at = case when p_verdict = 'not_sent' then null else notification.called_at end,
           in_doubt_since = case
                                when p_verdict = 'unknown' then coalesce(notification.in_doubt_since, now())
                                when p_verdict = 'not_sent' then notification.in_doubt_since
                            end,
           provider_message_id = coalesce(p_message_id, notification.provider_message_id),
           last_error = p_error,
           updated_at = now()
     where notification.tenant_id = v_tenant_id
       and notification.id = p_id
       and notification.status = 'queued'
       and (notification.claims = p_claim or p_verdict = 'sent');
    return found;
end
$$;

grant select on jobs.alert_notifications to postrider_app, postrider_worker, postrider_read;
revoke all on all functions in schema jobs from public;
grant execute on function
    jobs.plan_notifications(uuid[], text[]),
    jobs.reserve_notifications(integer),
    jobs.claim_doubtful_notifications(interval, integer),
    jobs.settle_notification(uuid, integer, text, text, text)
    to postrider_worker;
