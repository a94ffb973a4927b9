select alert.id,
       alert.alert_config_id,
       alert.external_object_id,
       alert.title,
       alert.severity,
       alert.status,
       alert.evidence,
       coalesce((select jsonb_agg(jsonb_build_object('account_id', told.account_id,
                                                     'recipient', told.recipient,
                                                     'about', told.about,
                                                     'status', told.status,
                                                     'attempts', told.attempts,
                                                     'in_doubt_since', told.in_doubt_since,
                                                     'provider_message_id', told.provider_message_id,
                                                     'last_error', told.last_error)
                                  order by told.id)
                   from jobs.alert_notifications as told
                  where told.tenant_id = alert.tenant_id
                    and told.alert_instance_id = alert.id), '[]') as "notifications!",
       alert.created_at as "created_at: jiff_sqlx::Timestamp",
       alert.updated_at as "updated_at: jiff_sqlx::Timestamp",
       alert.resolved_at as "resolved_at: jiff_sqlx::Timestamp"
  from jobs.alert_instances as alert
 where alert.tenant_id = $1
   and ($2::boolean is null or (alert.status <> 'resolved') = $2)
   and ($3::uuid is null or alert.id < $3)
 order by alert.id desc
 limit $4
