-- How jobs are doing: the health view, alerts that resolve themselves, and the cards on which people decide about them.
-- Safe beside running workers: it adds tables and functions and touches no other.

-- Something that somebody should know. Raised at most once a day for one object while it is open.
create table jobs.alert_instances (
    id                 uuid        not null default jobs.new_id(),
    tenant_id          uuid        not null references tenancy.tenants (id),
    alert_config_id    text        not null,
    external_object_id text,
    title              text        not null,
    severity           text        not null default 'warning',
    status             text        not null default 'active',
    evidence           jsonb       not null default '{}',
    created_at         timestamptz not null default now(),
    updated_at         timestamptz not null default now(),
    resolved_at        timestamptz,
    primary key (id),
    constraint alert_instances_by_tenant unique (tenant_id, id),
    constraint alert_instances_names_are_given
        check (btrim(alert_config_id) <> '' and octet_length(alert_config_id) <= 255 and octet_length(external_object_id) <= 255
               and btrim(title) <> '' and octet_length(title) <= 1000),
    constraint alert_instances_severity_check check (severity in ('info', 'warning', 'critical')),
    constraint alert_instances_status_check check (status in ('active', 'open', 'triggered', 'resolved')),
    constraint alert_instances_only_resolved_have_their_time check ((status = 'resolved') = (resolved_at is not null)),
    constraint alert_instances_evidence_is_an_object check (jsonb_typeof(evidence) = 'object' and pg_column_size(evidence) <= 65536)
);
create unique index unique_alert_instance
    on jobs.alert_instances (tenant_id, alert_config_id, coalesce(external_object_id, ''), ((created_at at time zone 'UTC')::date))
    nulls not distinct
    where status in ('active', 'open', 'triggered');
create index alert_instances_by_age on jobs.alert_instances (resolved_at) where status = 'resolved';
select tenancy.protect('jobs.alert_instances');
create trigger alert_instances_resolved_for_ever
    before update on jobs.alert_instances
    for each row
    when (old.status = 'resolved')
    execute function tenancy.refuse_change('an alert that is resolved stays so; what happens again is a new one');
create trigger alert_instances_are_facts
    before update of id, tenant_id, alert_config_id, external_object_id, created_at on jobs.alert_instances
    for each row
    execute function tenancy.refuse_change('an alert stays about what it was raised for');

-- What a person is asked to decide about an alert.
create table jobs.decision_cards (
    id                uuid        not null default jobs.new_id(),
    tenant_id         uuid        not null,
    alert_instance_id uuid        not null,
    metric_code       text        not null,
    period_start      date        not null,
    status            text        not null default 'OPEN',
    title             text        not null,
    recommendation    text        not null,
    evidence          jsonb       not null default '{}',
    note              text,
    decided_by        text,
    created_at        timestamptz not null default now(),
    updated_at        timestamptz not null default now(),
    primary key (id),
    constraint decision_cards_by_tenant unique (tenant_id, id),
    constraint decision_cards_are_about_an_alert
        foreign key (tenant_id, alert_instance_id) references jobs.alert_instances (tenant_id, id) on delete cascade,
    constraint decision_cards_status_check check (status in ('OPEN', 'IN_PROGRESS', 'RESOLVED', 'DISMISSED')),
    constraint decision_cards_decided_say_by_whom check (status = 'OPEN' or decided_by is not null)
);
create unique index unique_decision_card
    on jobs.decision_cards (tenant_id, alert_instance_id, metric_code, period_start)
    nulls not distinct
    where status in ('OPEN', 'IN_PROGRESS');
create index decision_cards_by_alert on jobs.decision_cards (tenant_id, alert_instance_id);
select tenancy.protect('jobs.decision_cards');
create trigger decision_cards_change_as_they_may
    before update of status on jobs.decision_cards
    for each row
    when (old.status <> new.status and (old.status, new.status) not in (
        ('OPEN', 'IN_PROGRESS'), ('OPEN', 'RESOLVED'), ('OPEN', 'DISMISSED'),
        ('IN_PROGRESS', 'OPEN'), ('IN_PROGRESS', 'RESOLVED'), ('IN_PROGRESS', 'DISMISSED')))
    execute function tenancy.refuse_change('a card that is resolved or dismissed stays so');

-- Job health summary, of the last day.
create view jobs.job_health with (security_invoker = true) as
select function_name,
       status,
       count(*) as count,
       avg(duration_ms) as avg_duration_ms,
       max(duration_ms) as max_duration_ms,
       sum(case when retry_count > 0 then 1 else 0 end) as retried_count
  from jobs.job_runs
 where created_at > now() - interval '24 hours'
 group by function_name, status
 order by function_name, status;

-- Raises an alert for the context's tenant, unless it is open already: for functions that watch other things than jobs. Says which
-- alert it is.
create function jobs.raise_alert(
    p_alert_config_id text, p_external_object_id text, p_title text, p_severity text default 'warning', p_evidence jsonb default '{}')
returns uuid
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_id        uuid;
begin
    for v_try in 1 .. 100 loop
        -- The newest: two that were raised on both sides of midnight may be open.
        select alert.id
          into v_id
          from jobs.alert_instances as alert
         where alert.tenant_id = v_tenant_id
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
                   updated_at = now()
             where alert.id = v_id;
            return v_id;
        end if;
        insert into jobs.alert_instances (tenant_id, alert_config_id, external_object_id, title, severity, evidence)
        values (v_tenant_id, p_alert_config_id, p_external_object_id, p_title, p_severity, p_evidence)
        on conflict do nothing
        returning id into v_id;
        if found then
            return v_id;
        end if;
        -- Somebody raised it at the same moment, or resolved it.
    end loop;
    raise exception 'the alert % is raised and resolved too often; try again', p_alert_config_id using errcode = 'lock_not_available';
end
$$;

-- Resolves what is open for an object. False when nothing is.
create function jobs.resolve_alert(p_alert_config_id text, p_external_object_id text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    update jobs.alert_instances as alert
       set status = 'resolved',
           resolved_at = now(),
           updated_at = now()
     where alert.tenant_id = v_tenant_id
       and alert.alert_config_id = p_alert_config_id
       and coalesce(alert.external_object_id, '') = coalesce(p_external_object_id, '')
       and alert.status in ('active', 'open', 'triggered');
    return found;
end
$$;

-- What is wrong with the jobs of the context's tenant at this moment, by the three thresholds.
create function jobs.job_conditions(p_failed_max integer, p_running_max interval, p_retry_rate_max double precision)
returns table (alert_config_id text, external_object_id text, title text, severity text, evidence jsonb)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    with recent as materialized (
        select run.function_name, run.status, run.retry_count
          from jobs.job_runs as run
         where run.tenant_id = tenancy.required_tenant_id()
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
     where run.tenant_id = tenancy.required_tenant_id()
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

-- Raises and resolves the alerts about jobs of the context's tenant.
create function jobs.detect_alerts(p_failed_max integer, p_running_max interval, p_retry_rate_max double precision)
returns table (raised integer, resolved integer, open integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_condition record;
    v_known     uuid[];
    v_ids       uuid[] := '{}';
begin
    select coalesce(array_agg(alert.id), '{}')
      into v_known
      from jobs.alert_instances as alert
     where alert.tenant_id = v_tenant_id
       and alert.alert_config_id in ('failed-jobs', 'long-running-jobs', 'retry-rate')
       and alert.status in ('active', 'open', 'triggered');
    for v_condition in select * from jobs.job_conditions(p_failed_max, p_running_max, p_retry_rate_max) loop
        v_ids := v_ids || jobs.raise_alert(v_condition.alert_config_id, v_condition.external_object_id, v_condition.title,
                                           v_condition.severity, v_condition.evidence);
    end loop;
    update jobs.alert_instances as alert
       set status = 'resolved',
           resolved_at = now(),
           updated_at = now()
     where alert.tenant_id = v_tenant_id
       and alert.id = any (v_known)
       and alert.id <> all (v_ids)
       and alert.status <> 'resolved';
    get diagnostics resolved = row_count;
    select count(*) filter (where alert.id <> all (v_known)), count(*)
      into raised, open
      from unnest(v_ids) as alert (id);
    return next;
end
$$;

-- What a person could do about an alert.
create function jobs.recommendation(p_alert_config_id text)
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

-- Makes a card for every open alert that has none, and closes the cards of alerts that are resolved.
create function jobs.generate_decision_cards()
returns table (opened integer, closed integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
begin
    insert into jobs.decision_cards (tenant_id, alert_instance_id, metric_code, period_start, title, recommendation, evidence)
    select alert.tenant_id, alert.id, alert.alert_config_id, (alert.created_at at time zone 'UTC')::date, alert.title,
           jobs.recommendation(alert.alert_config_id), alert.evidence
      from jobs.alert_instances as alert
     where alert.tenant_id = v_tenant_id
       and alert.status in ('active', 'open', 'triggered')
       -- Also when it was dismissed: nobody is asked twice.
       and not exists (select from jobs.decision_cards as card
                        where card.tenant_id = alert.tenant_id and card.alert_instance_id = alert.id)
    on conflict do nothing;
    get diagnostics opened = row_count;
    update jobs.decision_cards as card
       set status = 'RESOLVED',
           decided_by = 'postrider',
           note = 'the alert resolved itself',
           updated_at = now()
      from jobs.alert_instances as alert
     where card.tenant_id = v_tenant_id
       and card.status in ('OPEN', 'IN_PROGRESS')
       and alert.tenant_id = card.tenant_id
       and alert.id = card.alert_instance_id
       and alert.status = 'resolved';
    get diagnostics closed = row_count;
    return next;
end
$$;

-- A person's decision about a card. No row when there is none; the status it had when that cannot be changed any more.
create function jobs.decide_card(p_id uuid, p_status text, p_note text, p_actor text)
returns table (decided boolean, status text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_tenant_id constant uuid := tenancy.required_tenant_id();
    v_status    text;
begin
    select card.status
      into v_status
      from jobs.decision_cards as card
     where card.tenant_id = v_tenant_id
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
           updated_at = now()
     where card.id = p_id;
    insert into tenancy.audit_log (tenant_id, actor, action, subject, note)
    values (v_tenant_id, p_actor, 'card.' || lower(p_status), 'card:' || p_id, nullif(btrim(p_note), ''));
    return query select true, p_status;
end
$$;

grant select on jobs.alert_instances, jobs.decision_cards, jobs.job_health to postrider_app, postrider_worker, postrider_read;
revoke all on all functions in schema jobs from public;
grant execute on function
    jobs.decide_card(uuid, text, text, text)
    to postrider_app;
grant execute on function
    jobs.raise_alert(text, text, text, text, jsonb),
    jobs.resolve_alert(text, text)
    to postrider_app, postrider_worker;
grant execute on function
    jobs.detect_alerts(integer, interval, double precision),
    jobs.generate_decision_cards()
    to postrider_worker;
