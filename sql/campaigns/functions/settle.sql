-- Settlements: the results of provider calls, and the move of items to the failover account.

-- One statement per tenant: with a constant tenant and the array of its ids, the index of the primary key is read at these ids alone, and a
-- hash table joins the results to the items. A join by tenant and id in one statement for all tenants reads the whole index once
-- per call, or compares each item with each result, if it is planned while the table looks empty.
create or replace function execution.finalize_outbox_items(
    p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[], p_statuses text[], p_message_ids text[], p_errors text[])
returns table (tenant_id uuid, id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_nestloop = off
set enable_mergejoin = off
as $$
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
comment on function execution.finalize_outbox_items(uuid[], text, uuid[], text[], text[], text[]) is
    'Settles items, of any number of tenants, with the results of their calls: sent, called, posted, failed; in_doubt, '
    'which leaves the row queued; or put_back, which leaves it queued without a worker, because the account must wait. Only the worker that reserved an item settles it, whether or not it still holds the send job, because the '
    'result of a call is evidence. Returns the changed rows; the others were settled before.';
revoke all on function execution.finalize_outbox_items(uuid[], text, uuid[], text[], text[], text[]) from public;
grant execute on function execution.finalize_outbox_items(uuid[], text, uuid[], text[], text[], text[]) to postrider_worker;

create or replace function execution.move_outbox_items(p_tenant_ids uuid[], p_worker_id text, p_outbox_ids uuid[])
returns table (tenant_id uuid, id uuid)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
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
comment on function execution.move_outbox_items(uuid[], text, uuid[]) is
    'Moves items to the failover account of their run before they are called there, and returns the moved items. An '
    'item moves only if this worker reserved it, it is not in doubt and it has not moved before.';
revoke all on function execution.move_outbox_items(uuid[], text, uuid[]) from public;
grant execute on function execution.move_outbox_items(uuid[], text, uuid[]) to postrider_worker;
