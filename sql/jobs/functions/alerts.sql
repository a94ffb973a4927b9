-- Alerts and decision cards. Conditions of job runs raise and resolve alerts; functions of a tenant can raise and
-- resolve their own. Each open alert gets a card on which a person decides.

create or replace function jobs.raise_alert(
    p_tenant_id uuid, p_alert_config_id text, p_external_object_id text, p_title text,
    p_severity text default 'warning', p_evidence jsonb default '{}')
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.raise_alert(uuid, text, text, text, text, jsonb) is
    'Raises an alert of a tenant, or updates the one that is open for this configuration and object. Returns the id of '
    'the alert. Functions that monitor other things than jobs call it too.';
revoke all on function jobs.raise_alert(uuid, text, text, text, text, jsonb) from public;
grant execute on function jobs.raise_alert(uuid, text, text, text, text, jsonb) to postrider_app, postrider_worker;

create or replace function jobs.close_alerts(p_tenant_id uuid, p_ids uuid[])
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.close_alerts(uuid, uuid[]) is
    'Marks those of the alerts that are open as resolved, and returns their number.';
revoke all on function jobs.close_alerts(uuid, uuid[]) from public;

create or replace function jobs.resolve_alert(p_tenant_id uuid, p_alert_config_id text, p_external_object_id text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.resolve_alert(uuid, text, text) is
    'Resolves the open alerts of a tenant for a configuration and object. Returns false if none is open.';
revoke all on function jobs.resolve_alert(uuid, text, text) from public;
grant execute on function jobs.resolve_alert(uuid, text, text) to postrider_app, postrider_worker;

create or replace function jobs.job_conditions(
    p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision)
returns table (alert_config_id text, external_object_id text, title text, severity text, evidence jsonb)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.job_conditions(uuid, integer, interval, double precision) is
    'Returns the alert conditions that hold now for job runs of a tenant: too many failures in 24 '
    'hours, runs that take too long, and too high a share of retried runs.';
revoke all on function jobs.job_conditions(uuid, integer, interval, double precision) from public;

create or replace function jobs.detect_alerts(
    p_tenant_id uuid, p_failed_max integer, p_running_max interval, p_retry_rate_max double precision)
returns table (raised integer, resolved integer, open integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.detect_alerts(uuid, integer, interval, double precision) is
    'Raises the alerts whose job_conditions hold and resolves the others, for a tenant. Returns '
    'the numbers of raised, resolved and open alerts.';
revoke all on function jobs.detect_alerts(uuid, integer, interval, double precision) from public;
grant execute on function jobs.detect_alerts(uuid, integer, interval, double precision) to postrider_worker;

create or replace function jobs.recommendation(p_alert_config_id text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case p_alert_config_id
               when 'failed-jobs' then 'Look at the dead letters, mend what they name, and retry or resolve each of them.'
               when 'long-running-jobs' then 'Look whether the function still works on it. Cancel the run if it does not, and invoke it again.'
               when 'retry-rate' then 'Look at the errors of the runs that were retried: something fails now and then.'
               else 'Look at the evidence, and resolve or dismiss this card.'
           end
$$;
comment on function jobs.recommendation(text) is
    'Returns the recommendation on a card for this kind of alert.';
revoke all on function jobs.recommendation(text) from public;

create or replace function jobs.generate_decision_cards(p_tenant_id uuid)
returns table (opened integer, closed integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.generate_decision_cards(uuid) is
    'Creates a card for each open alert that has none and resolves the cards of resolved alerts, for a tenant. '
    'Returns the numbers of opened and closed cards.';
revoke all on function jobs.generate_decision_cards(uuid) from public;
grant execute on function jobs.generate_decision_cards(uuid) to postrider_worker;

create or replace function jobs.decide_card(p_tenant_id uuid, p_id uuid, p_status text, p_note text, p_actor text)
returns table (decided boolean, status text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
comment on function jobs.decide_card(uuid, uuid, text, text, text) is
    'Records the decision of a person about a card. Returns no row if the card does not exist; a card that is '
    'resolved or dismissed keeps its status, which is returned.';
revoke all on function jobs.decide_card(uuid, uuid, text, text, text) from public;
grant execute on function jobs.decide_card(uuid, uuid, text, text, text) to postrider_app;
