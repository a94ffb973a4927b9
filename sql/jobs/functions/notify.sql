-- Notifications about alerts: at most one provider call per row, unless the provider was not reached or a repeat is
-- harmless.

create or replace function jobs.plan_notifications(p_tenant_id uuid, p_account_ids uuid[], p_recipients text[])
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.plan_notifications(uuid, uuid[], text[]) is
    'Inserts the missing notifications for these accounts and recipients, and returns their number: one for each '
    'open alert, and one for each resolved alert of which the recipient may have been notified.';
revoke all on function jobs.plan_notifications(uuid, uuid[], text[]) from public;
grant execute on function jobs.plan_notifications(uuid, uuid[], text[]) to postrider_worker;

create or replace function jobs.reserve_notifications(p_tenant_id uuid, p_limit integer)
returns table (id uuid, account_id uuid, recipient text, subject text, body text, claims integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.reserve_notifications(uuid, integer) is
    'Reserves queued notifications of a tenant for one provider call each. After the commit, the call may have been made.';
revoke all on function jobs.reserve_notifications(uuid, integer) from public;
grant execute on function jobs.reserve_notifications(uuid, integer) to postrider_worker;

create or replace function jobs.claim_doubtful_notifications(p_tenant_id uuid, p_quiet interval, p_limit integer)
returns table (id uuid, account_id uuid, recipient text, subject text, body text, claims integer,
               first_called_at timestamptz, in_doubt_since timestamptz, age_seconds double precision)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.claim_doubtful_notifications(uuid, interval, integer) is
    'Claims notifications of a tenant whose call has no known result, once p_quiet has passed since the last call.';
revoke all on function jobs.claim_doubtful_notifications(uuid, interval, integer) from public;
grant execute on function jobs.claim_doubtful_notifications(uuid, interval, integer) to postrider_worker;

create or replace function jobs.settle_notification(
    p_tenant_id uuid, p_id uuid, p_claim integer, p_verdict text, p_message_id text, p_error text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.settle_notification(uuid, uuid, integer, text, text, text) is
    'Records the result of a call: sent, failed, not_sent (safe to call again, up to five attempts) or unknown. '
    'Returns false if the claim is not the newest or the notification is settled; sent counts under any claim.';
revoke all on function jobs.settle_notification(uuid, uuid, integer, text, text, text) from public;
grant execute on function jobs.settle_notification(uuid, uuid, integer, text, text, text) to postrider_worker;
