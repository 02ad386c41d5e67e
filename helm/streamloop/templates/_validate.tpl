{{/*
What values.schema.json can't say: values that are each right and together wrong. Everything that is wrong is said at once, a sentence
each, with the value to change. Included by every workload.
*/}}

{{- define "streamloop.validate" -}}
{{- $wrong := list -}}
{{- $settings := .Values.settings -}}
{{- $model := fromYaml (include "streamloop.model" .) -}}
{{- $bounded := has .Values.kind (list "Job" "CronJob") -}}

{{- /* Secrets */ -}}
{{- range $name, $instead := $model.secrets.settings -}}
{{- if and (hasKey $settings $name) (not (kindIs "invalid" (get $settings $name))) -}}
{{- $wrong = append $wrong (printf "settings.%s would put a secret into a ConfigMap. Put it into a Secret and name that in %s." $name $instead) -}}
{{- end -}}
{{- end -}}
{{- range $section, $properties := default dict $settings.kafka -}}
{{- range $name, $value := default dict $properties -}}
{{- if and (regexMatch $model.secrets.pattern (lower $name)) (not (regexMatch $model.secrets.except (lower $name))) -}}
{{- $wrong = append $wrong (printf "settings.kafka.%s.%s would put a secret into a ConfigMap. Give it as the variable STREAMLOOP_KAFKA__%s__%s in extraEnv, with valueFrom.secretKeyRef." $section $name (upper $section) (upper $name | replace "." "_")) -}}
{{- end -}}
{{- if eq $name "group.instance.id" -}}
{{- $wrong = append $wrong (printf "settings.kafka.%s.group.instance.id would give all pods one identity, and all but one would be fenced. Use kind: StatefulSet with statefulSet.staticMembership." $section) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- $plain := lower (trimPrefix "STREAMLOOP_" (toString .name)) -}}
{{- if and (hasPrefix "STREAMLOOP_" (toString .name)) (not (kindIs "invalid" .value)) (regexMatch $model.secrets.pattern $plain) (not (regexMatch $model.secrets.exceptVariable $plain)) -}}
{{- $wrong = append $wrong (printf "extraEnv has %s with its value: everybody who may see pods sees it. Use valueFrom.secretKeyRef." .name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.auth.sasl.existingSecret $settings.sasl_password_file -}}
{{- $wrong = append $wrong "auth.sasl.existingSecret and settings.sasl_password_file both give the password. Leave one of them out." -}}
{{- end -}}
{{- if and .Values.auth.sasl.existingSecret (not .Values.auth.sasl.passwordKey) -}}
{{- $wrong = append $wrong "auth.sasl.existingSecret is set without auth.sasl.passwordKey. Name the key that holds the password." -}}
{{- end -}}
{{- if and .Values.auth.sasl.existingSecret (not (has (lower (toString $settings.security_protocol)) (list "sasl_plaintext" "sasl_ssl"))) -}}
{{- $wrong = append $wrong (printf "auth.sasl.existingSecret is set but settings.security_protocol is %s: the password would not be used. Set it to sasl_ssl (or sasl_plaintext)." (default "not set" $settings.security_protocol)) -}}
{{- end -}}
{{- if and .Values.auth.tls.existingSecret (not (has (lower (toString $settings.security_protocol)) (list "ssl" "sasl_ssl"))) -}}
{{- $wrong = append $wrong (printf "auth.tls.existingSecret is set but settings.security_protocol is %s: the connection would not be encrypted. Set it to ssl or sasl_ssl." (default "not set" $settings.security_protocol)) -}}
{{- end -}}
{{- if ne (empty .Values.auth.tls.certKey) (empty .Values.auth.tls.keyKey) -}}
{{- $wrong = append $wrong "auth.tls.certKey and auth.tls.keyKey belong together. Set both or none." -}}
{{- end -}}
{{- with .Values.auth.tokens -}}
{{- if and .existingSecret (not (or .readKey .actKey)) -}}
{{- $wrong = append $wrong "auth.tokens.existingSecret is set without auth.tokens.readKey or auth.tokens.actKey. Name the keys that hold the tokens." -}}
{{- end -}}
{{- end -}}

{{- /* The end, and roll-outs */ -}}
{{- $needed := include "streamloop.neededGrace" . | int64 -}}
{{- $grace := include "streamloop.grace" . | int64 -}}
{{- $drain := addf (include "streamloop.preStop" . | float64) (include "streamloop.settingSeconds" (list . "drain_timeout") | float64) -}}
{{- if lt $grace $needed -}}
{{- $wrong = append $wrong (printf "terminationGracePeriodSeconds is %d but a pod may need %d s to end: preStop and settings.drain_timeout (%v s together), leaving the group, settings.shutdown_timeout, telemetry and a margin. Leave it empty, set it to at least %d, or lower settings.drain_timeout." $grace $needed $drain $needed) -}}
{{- end -}}
{{- if hasKey $settings "termination_grace" -}}
{{- if not (kindIs "invalid" $settings.termination_grace) -}}
{{- if gt (addf (include "streamloop.preStop" . | float64) (include "streamloop.seconds" $settings.termination_grace | float64)) (float64 $grace) -}}
{{- $wrong = append $wrong (printf "settings.termination_grace is %v but the pod has %d s (terminationGracePeriodSeconds). Leave it out: the chart sets it." $settings.termination_grace $grace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $bounded -}}
{{- $ready := include "streamloop.minReady" . | int64 -}}
{{- if and (eq .Values.kind "Deployment") (lt (float64 $ready) $drain) -}}
{{- $wrong = append $wrong (printf "minReadySeconds is %d but a pod drains for up to %v s (preStop and settings.drain_timeout): a roll-out would take the next one while it still drains. Leave it empty, or set it to at least %v." $ready $drain (ceil $drain)) -}}
{{- end -}}
{{- if and (eq .Values.kind "Deployment") (le (include "streamloop.progressDeadline" . | int64) $ready) -}}
{{- $wrong = append $wrong (printf "progressDeadlineSeconds is %s, not more than minReadySeconds (%d): every roll-out would count as failed. Leave it empty or raise it." (include "streamloop.progressDeadline" .) $ready) -}}
{{- end -}}
{{- end -}}

{{- /* Addresses */ -}}
{{- $ops := toString (fromJson (include "streamloop.setting" (list . "ops_address"))).value -}}
{{- if or .Values.probes.enabled .Values.podMonitor.enabled -}}
{{- if or (not (regexMatch ":[0-9]+$" $ops)) (hasSuffix ":0" $ops) -}}
{{- $wrong = append $wrong (printf "settings.ops_address is %q: probes and metrics need an address with a port, such as 0.0.0.0:9464. (Or set probes.enabled and podMonitor.enabled to false.)" $ops) -}}
{{- else if regexMatch "^(127\\.|localhost|\\[::1\\])" $ops -}}
{{- $wrong = append $wrong (printf "settings.ops_address is %q: probes and metrics come from outside the pod and can't reach it. Set it to 0.0.0.0:9464 ([::]:9464 with IPv6)." $ops) -}}
{{- end -}}
{{- end -}}
{{- if .Values.controlService.enabled -}}
{{- $control := toString (fromJson (include "streamloop.setting" (list . "control_address"))).value -}}
{{- if or (not (regexMatch ":[1-9][0-9]*$" $control)) (regexMatch "^(127\\.|localhost|\\[::1\\])" $control) -}}
{{- $wrong = append $wrong (printf "controlService.enabled is true but settings.control_address is %q, which no Service reaches. Set it to 0.0.0.0:9465." $control) -}}
{{- end -}}
{{- end -}}
{{- if and $settings.member (not (kindIs "invalid" $settings.member)) -}}
{{- $wrong = append $wrong "settings.member would give all pods one name. Leave it out: each is called as its pod." -}}
{{- end -}}

{{- /* Memory */ -}}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- if $limit -}}
{{- $bytes := include "streamloop.bytes" $limit | float64 -}}
{{- $watermarks := include "streamloop.watermarks" . | float64 -}}
{{- if ge $watermarks $bytes -}}
{{- $wrong = append $wrong (printf "settings.high_watermark_bytes and settings.retry_high_watermark_bytes allow %.0f MiB of messages but resources.limits.memory is %v. Lower the watermarks or raise the limit." (divf $watermarks 1048576.0) $limit) -}}
{{- end -}}
{{- $said := $settings.memory_limit -}}
{{- if and (not (kindIs "invalid" $said)) (ne (lower (toString $said)) "none") -}}
{{- if gt (include "streamloop.bytes" $said | float64) $bytes -}}
{{- $wrong = append $wrong (printf "settings.memory_limit is %v but resources.limits.memory is %v. Leave it out: the members read the limit of their pod." $said $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Scaling */ -}}
{{- $scaling := .Values.autoscaling -}}
{{- if ne $scaling.type "none" -}}
{{- if $bounded -}}
{{- $wrong = append $wrong (printf "autoscaling.type is %s but kind is %s, which has job.parallelism instead. Set autoscaling.type to none." $scaling.type .Values.kind) -}}
{{- end -}}
{{- if gt (int64 $scaling.minReplicas) (int64 $scaling.maxReplicas) -}}
{{- $wrong = append $wrong (printf "autoscaling.minReplicas (%d) is more than autoscaling.maxReplicas (%d)." (int64 $scaling.minReplicas) (int64 $scaling.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $scaling.type "hpa") (lt (int64 $scaling.minReplicas) 1) -}}
{{- $wrong = append $wrong "autoscaling.minReplicas is 0, which an HPA can't do: it can't see what waits while nobody runs. Set it to 1, or use autoscaling.type keda." -}}
{{- end -}}
{{- if and (eq $scaling.type "hpa") (not $scaling.hpa.cpuUtilization) (not $scaling.hpa.metrics) -}}
{{- $wrong = append $wrong "autoscaling.type is hpa without autoscaling.hpa.cpuUtilization or autoscaling.hpa.metrics. Set one of them." -}}
{{- end -}}
{{- if eq $scaling.type "keda" -}}
{{- if and (not .Values.topics) (not $scaling.keda.triggers) -}}
{{- $wrong = append $wrong "autoscaling.type is keda but topics is empty: list the source topics, or give autoscaling.keda.triggers." -}}
{{- end -}}
{{- if and .Values.topics (not (and $settings.brokers $settings.group)) -}}
{{- $wrong = append $wrong "autoscaling.type is keda, which needs settings.brokers and settings.group: KEDA can't see what your code sets." -}}
{{- end -}}
{{- if and (eq (int64 $scaling.minReplicas) 0) (not $scaling.keda.retryTriggers) (eq (include "streamloop.readsRetryTopics" .) "true") -}}
{{- $wrong = append $wrong "autoscaling.minReplicas is 0 without triggers for retry and replay topics: messages that wait there would wait for ever. Set autoscaling.keda.retryTriggers to true, or minReplicas to 1." -}}
{{- end -}}
{{- if and (eq (int64 $scaling.minReplicas) 0) (not .Values.topics) -}}
{{- $wrong = append $wrong "autoscaling.minReplicas is 0 but topics is empty: list the source topics, so that their retry and replay topics have triggers." -}}
{{- end -}}
{{- end -}}

{{- /* Topics */ -}}
{{- if .Values.topicsJob.enabled -}}
{{- $create := false -}}
{{- range .Values.topics -}}{{- if .create -}}{{- $create = true -}}{{- end -}}{{- end -}}
{{- if not (or $create .Values.topicsJob.withLoop) -}}
{{- $wrong = append $wrong "topicsJob.enabled is true but no entry of topics has create. Add create with partitions to those that it should make." -}}
{{- end -}}
{{- end -}}

{{- if $wrong -}}
{{- fail (printf "\n\nThese values of the chart can't work:\n- %s\n" (join "\n- " (uniq $wrong))) -}}
{{- end -}}
{{- end -}}
