-- The sinks that every relay of this installation delivers to; relays claim and complete events under them.
-- Safe beside running workers: it adds a schema and changes no other. Relays of an older version keep claiming without asking
-- for the registered sinks, so replace the sinks only after every relay runs this version.

create schema events;
grant usage on schema events to postrider_app, postrider_worker, postrider_read;

-- Each row is one set of sinks; the one with the highest generation is registered. A sink has a name, a kind, a target that
-- identifies its destination without its secrets, and the patterns of the events that it receives.
create table events.sink_sets (
    generation    bigint      not null,
    sinks         jsonb       not null,
    registered_at timestamptz not null default now(),
    registered_by text        not null,
    primary key (generation),
    constraint sink_sets_hold_sinks check (jsonb_typeof(sinks) = 'array' and sinks <> '[]')
);
create trigger sink_sets_are_facts
    before update or delete on events.sink_sets
    for each row
    execute function tenancy.refuse_change('a registered set of sinks stays as it was registered');
create trigger sink_sets_are_never_emptied
    before truncate on events.sink_sets
    for each statement
    execute function tenancy.refuse_change('a registered set of sinks stays as it was registered');

-- Registers the sinks if none are registered yet, and answers with the registered ones.
create function events.register_sinks(p_sinks jsonb, p_actor text)
returns setof events.sink_sets
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from events.sink_sets) then
        -- Two relays that start at once: the second one waits, and then sees the sinks of the first.
        lock table events.sink_sets in exclusive mode;
        insert into events.sink_sets (generation, sinks, registered_by)
        select 1, p_sinks, p_actor
         where not exists (select from events.sink_sets);
    end if;
    return query
        select registered.*
          from events.sink_sets as registered
         order by registered.generation desc
         limit 1;
end
$$;

-- Registers these sinks instead of the registered ones, and answers with the registered ones. Completions that are under way
-- commit first. Later ones of relays with the old sinks are refused by complete_events.
create function events.replace_sinks(p_sinks jsonb, p_actor text)
returns setof events.sink_sets
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
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
        values (null, p_actor, 'sinks.replaced', 'sinks:' || v_registered.generation);
    end if;
    return next v_registered;
end
$$;

-- Claims events for a relay that delivers to the sinks of this generation, and says for each when it was published and which
-- sinks have it. Raises PR004 when other sinks are registered by now.
create function events.claim_events(p_generation bigint, p_processor_id text, p_batch_size integer)
returns table (
    id bigint,
    aggregate_type text,
    aggregate_id text,
    event_type text,
    payload jsonb,
    retry_count integer,
    created_at timestamptz,
    delivered_to text[])
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_ids bigint[];
begin
    if (select max(registered.generation) from events.sink_sets as registered) is distinct from p_generation then
        raise exception 'the sinks of generation % are not the registered ones', coalesce(p_generation::text, 'null')
            using errcode = 'PR004',
                  hint = 'Run `postrider relay sinks` to see the registered ones.';
    end if;
    -- Claim first, then read in a statement of its own. A single statement would claim events that were committed after its
    -- snapshot, not find them when it reads the outbox, and keep them claimed without returning them.
    v_ids := array(select claimed.id from m10_recovery.claim_outbox_events(p_processor_id, p_batch_size) as claimed);
    return query
        select event.id,
               event.aggregate_type,
               event.aggregate_id,
               event.event_type,
               event.payload,
               event.retry_count,
               event.created_at,
               array(select noted.sink from m10_recovery.outbox_deliveries as noted where noted.event_id = event.id)
          from m10_recovery.outbox as event
         where event.id = any (v_ids);
end
$$;

-- Completes events as m10_recovery.complete_outbox_events does, if the sinks of this generation are the registered ones.
-- Answers false and changes nothing when they are not: the events were delivered to other sinks, and the relay gives them back.
-- The lock holds replace_sinks back until this transaction ends, so no event is completed under sinks that were replaced.
create function events.complete_events(
    p_generation bigint,
    p_processor_id text,
    p_event_ids bigint[],
    p_errors text[])
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    lock table events.sink_sets in row share mode;
    if (select max(registered.generation) from events.sink_sets as registered) is distinct from p_generation then
        return false;
    end if;
    perform m10_recovery.complete_outbox_events(p_processor_id, p_event_ids, p_errors);
    return true;
end
$$;

revoke all on all functions in schema events from public;
grant execute on function
    events.register_sinks(jsonb, text),
    events.claim_events(bigint, text, integer),
    events.complete_events(bigint, text, bigint[], text[])
    to postrider_worker;
grant select on events.sink_sets to postrider_worker, postrider_read;
