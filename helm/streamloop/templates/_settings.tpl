{{/*
The settings file, and the sums that follow from it. What the chart knows (paths of mounted secrets, the grace period) is added to
`settings`; nothing else is, so that code, chart and defaults keep their order.
*/}}

{{- define "streamloop.settings" -}}
{{- $settings := dict -}}
{{- /* An empty value is one that was not given: code or environment may have it. */ -}}
{{- range $name, $value := .Values.settings -}}
{{- if not (or (kindIs "invalid" $value) (and (has $name (list "brokers" "group")) (empty $value))) -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- end -}}
{{- $folder := "/etc/streamloop/secrets" -}}
{{- with .Values.auth.sasl -}}{{- if .existingSecret -}}
{{- $_ := set $settings "sasl_password_file" (printf "%s/sasl/password" $folder) -}}
{{- end -}}{{- end -}}
{{- with .Values.auth.tls -}}{{- if .existingSecret -}}
{{- if .caKey -}}{{- $_ := set $settings "ssl_ca_location" (printf "%s/tls/ca.crt" $folder) -}}{{- end -}}
{{- if .certKey -}}{{- $_ := set $settings "ssl_certificate_location" (printf "%s/tls/tls.crt" $folder) -}}{{- end -}}
{{- if .keyKey -}}{{- $_ := set $settings "ssl_key_location" (printf "%s/tls/tls.key" $folder) -}}{{- end -}}
{{- if .keyPasswordKey -}}{{- $_ := set $settings "ssl_key_password_file" (printf "%s/tls/key-password" $folder) -}}{{- end -}}
{{- end -}}{{- end -}}
{{- with .Values.auth.tokens -}}{{- if .existingSecret -}}
{{- if .readKey -}}{{- $_ := set $settings "control_read_token_file" (printf "%s/tokens/read" $folder) -}}{{- end -}}
{{- if .actKey -}}{{- $_ := set $settings "control_act_token_file" (printf "%s/tokens/act" $folder) -}}{{- end -}}
{{- end -}}{{- end -}}
{{- if and .Values.podMonitor.enabled (not (hasKey $settings "metrics_exporter")) -}}
{{- /* Scraped and pushed would be counted twice. */ -}}
{{- $_ := set $settings "metrics_exporter" "none" -}}
{{- end -}}
{{- if and .Values.controlService.enabled (not (hasKey $settings "control_hosts")) -}}
{{- $host := printf "%s-control" (include "streamloop.fullname" .) -}}
{{- $_ := set $settings "control_hosts" (list $host (printf "%s.%s" $host .Release.Namespace) (printf "%s.%s.svc" $host .Release.Namespace)) -}}
{{- end -}}
{{- if not (hasKey $settings "termination_grace") -}}
{{- /* What a preStop takes of the grace period is gone before SIGTERM. */ -}}
{{- $_ := set $settings "termination_grace" (subf (include "streamloop.grace" . | float64) (include "streamloop.preStop" . | float64)) -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* A setting in force as far as the chart knows: the value, else the model's default, and whether it was given. (list $ name) */}}
{{- define "streamloop.setting" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- $value := get $root.Values.settings $name -}}
{{- if or (kindIs "invalid" $value) (not (hasKey $root.Values.settings $name)) -}}
{{- $value = get (fromYaml (include "streamloop.model" $root)).defaults $name -}}
{{- end -}}
{{- toJson (dict "value" $value "given" (and (hasKey $root.Values.settings $name) (not (kindIs "invalid" (get $root.Values.settings $name))))) -}}
{{- end -}}

{{/* Seconds of a duration setting in force: (list $ name) */}}
{{- define "streamloop.settingSeconds" -}}
{{- include "streamloop.seconds" (fromJson (include "streamloop.setting" .)).value -}}
{{- end -}}

{{/* Seconds from the deletion of a pod to SIGTERM. */}}
{{- define "streamloop.preStop" -}}
{{- $sleep := 0 -}}
{{- with .Values.lifecycle.preStop -}}{{- with .sleep -}}{{- $sleep = .seconds -}}{{- end -}}{{- end -}}
{{- addf (float64 $sleep) (float64 .Values.preStopSeconds) -}}
{{- end -}}

{{/*
Seconds from the deletion of a pod until its member has left the group, when nothing ends before its bound; with a margin, since
Kubernetes notes when a pod became ready without its fraction of a second, and needs a moment to remove the old one.
*/}}
{{- define "streamloop.leave" -}}
{{- $bounds := (fromYaml (include "streamloop.model" .)).bounds -}}
{{- $drain := include "streamloop.settingSeconds" (list . "drain_timeout") | float64 -}}
{{- printf "%.0f" (ceil (addf (include "streamloop.preStop" . | float64) $drain $bounds.leave $bounds.margin)) -}}
{{- end -}}

{{/* Seconds from the deletion of a pod until its process has ended, and a margin. */}}
{{- define "streamloop.neededGrace" -}}
{{- $bounds := (fromYaml (include "streamloop.model" .)).bounds -}}
{{- $left := addf (include "streamloop.settingSeconds" (list . "drain_timeout") | float64) $bounds.leave -}}
{{- $starting := include "streamloop.settingSeconds" (list . "startup_timeout") | float64 -}}
{{- $hooks := include "streamloop.settingSeconds" (list . "shutdown_timeout") | float64 -}}
{{- $traces := include "streamloop.settingSeconds" (list . "trace_flush_timeout") | float64 -}}
{{- printf "%.0f" (ceil (addf (include "streamloop.preStop" . | float64) (maxf $left $starting) $hooks $traces $bounds.end $bounds.margin)) -}}
{{- end -}}

{{- define "streamloop.grace" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- include "streamloop.neededGrace" . -}}
{{- else -}}
{{- int64 .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{- define "streamloop.minReady" -}}
{{- if kindIs "invalid" .Values.minReadySeconds -}}
{{- include "streamloop.leave" . -}}
{{- else -}}
{{- int64 .Values.minReadySeconds -}}
{{- end -}}
{{- end -}}

{{- define "streamloop.progressDeadline" -}}
{{- if kindIs "invalid" .Values.progressDeadlineSeconds -}}
{{- max 600 (add (include "streamloop.minReady" . | int64) 300) -}}
{{- else -}}
{{- int64 .Values.progressDeadlineSeconds -}}
{{- end -}}
{{- end -}}

{{- define "streamloop.opsPort" -}}
{{- (fromJson (include "streamloop.setting" (list . "ops_address"))).value | toString | regexFind "[0-9]+$" -}}
{{- end -}}

{{- define "streamloop.controlPort" -}}
{{- (fromJson (include "streamloop.setting" (list . "control_address"))).value | toString | regexFind "[0-9]+$" -}}
{{- end -}}

{{/* Most bytes that messages, and Python with them, can take: the sum that the start checks, too. */}}
{{- define "streamloop.memoryNeeded" -}}
{{- $memory := (fromYaml (include "streamloop.model" .)).memory -}}
{{- $high := include "streamloop.bytes" (fromJson (include "streamloop.setting" (list . "high_watermark_bytes"))).value | float64 -}}
{{- $retryHigh := include "streamloop.bytes" (fromJson (include "streamloop.setting" (list . "retry_high_watermark_bytes"))).value | float64 -}}
{{- $prefetch := include "streamloop.bytes" (fromJson (include "streamloop.setting" (list . "prefetch_bytes"))).value | float64 -}}
{{- $queue := include "streamloop.bytes" (fromJson (include "streamloop.setting" (list . "producer_queue_bytes"))).value | float64 -}}
{{- $fetch := float64 $memory.fetch -}}
{{- $kafka := default dict .Values.settings.kafka -}}
{{- with get (default dict $kafka.common) "fetch.max.bytes" -}}{{- $fetch = float64 . -}}{{- end -}}
{{- with get (default dict $kafka.consumer) "fetch.max.bytes" -}}{{- $fetch = float64 . -}}{{- end -}}
{{- $needed := addf (float64 $memory.interpreter) $queue $high $prefetch $fetch -}}
{{- if eq (include "streamloop.readsRetryTopics" .) "true" -}}
{{- $needed = addf $needed $retryHigh $prefetch $fetch -}}
{{- end -}}
{{- printf "%.0f" $needed -}}
{{- end -}}

{{- define "streamloop.watermarks" -}}
{{- $sum := include "streamloop.bytes" (fromJson (include "streamloop.setting" (list . "high_watermark_bytes"))).value | float64 -}}
{{- if eq (include "streamloop.readsRetryTopics" .) "true" -}}
{{- $sum = addf $sum (include "streamloop.bytes" (fromJson (include "streamloop.setting" (list . "retry_high_watermark_bytes"))).value | float64) -}}
{{- end -}}
{{- printf "%.0f" $sum -}}
{{- end -}}

{{/*
Whether a second Consumer reads, as far as the chart knows: retry topics, or replay topics, which belong to dead letters. It has
watermarks and a prefetch of its own.
*/}}
{{- define "streamloop.readsRetryTopics" -}}
{{- $names := list "" -}}
{{- range $name, $_ := default dict .Values.settings.consumers -}}{{- $names = append $names $name -}}{{- end -}}
{{- $reads := false -}}
{{- range $names -}}
{{- $topic := dict "consumer" . -}}
{{- if (fromYaml (include "streamloop.retryDelays" (list $ $topic))).items -}}{{- $reads = true -}}{{- end -}}
{{- if eq (include "streamloop.hasReplayTopic" (list $ $topic)) "true" -}}{{- $reads = true -}}{{- end -}}
{{- end -}}
{{- range .Values.topics -}}{{- if .retryTopics -}}{{- $reads = true -}}{{- end -}}{{- end -}}
{{- $reads -}}
{{- end -}}

{{/* The delays of the retry topics of a source topic, as YAML under `items`: (list $ topic) */}}
{{- define "streamloop.retryDelays" -}}
{{- $root := index . 0 -}}{{- $topic := index . 1 -}}
{{- $delays := (fromYaml (include "streamloop.items" (fromJson (include "streamloop.topicSetting" (list $root $topic "retry_topics"))).value)).items -}}
{{- /* A strict order excludes the default ones. */ -}}
{{- $strict := (fromJson (include "streamloop.topicSetting" (list $root $topic "strict_order"))).value -}}
{{- if and (eq (toString $strict) "true") (not (fromJson (include "streamloop.topicSetting" (list $root $topic "retry_topics"))).given) -}}
{{- $delays = list -}}
{{- end -}}
{{- if hasKey $topic "retryTopics" -}}{{- $delays = $topic.retryTopics -}}{{- end -}}
{{- toYaml (dict "items" $delays) -}}
{{- end -}}

{{/* Whether a source topic has a replay topic: where dead letters come back. (list $ topic) */}}
{{- define "streamloop.hasReplayTopic" -}}
{{- $root := index . 0 -}}{{- $topic := index . 1 -}}
{{- $named := hasKey (fromYaml (include "streamloop.model" $root)).defaults "replay_topic_name" -}}
{{- and $named (ne (toString (fromJson (include "streamloop.topicSetting" (list $root $topic "dead_letter"))).value) "false") -}}
{{- end -}}

{{/* A setting of the consumer that reads a topic: (list $ topic name) */}}
{{- define "streamloop.topicSetting" -}}
{{- $root := index . 0 -}}{{- $topic := index . 1 -}}{{- $name := index . 2 -}}
{{- $found := fromJson (include "streamloop.setting" (list $root $name)) -}}
{{- range $consumer, $own := default dict $root.Values.settings.consumers -}}
{{- if and $topic.consumer (eq (include "streamloop.consumerKey" $consumer) (include "streamloop.consumerKey" $topic.consumer)) (hasKey (default dict $own) $name) -}}
{{- $found = dict "value" (get $own $name) "given" true -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The topics that the group <group>.retry reads for a source topic, as YAML under `items`: (list $ topic) */}}
{{- define "streamloop.retryTopicNames" -}}
{{- $root := index . 0 -}}{{- $topic := index . 1 -}}
{{- $group := $root.Values.settings.group -}}
{{- $found := list -}}
{{- $delays := (fromYaml (include "streamloop.retryDelays" (list $root $topic))).items -}}
{{- $template := (fromJson (include "streamloop.topicSetting" (list $root $topic "retry_topic_name"))).value -}}
{{- range $delays -}}
{{- $delay := include "streamloop.showDuration" (include "streamloop.seconds" .) -}}
{{- $found = append $found ($template | replace "{topic}" $topic.name | replace "{group}" $group | replace "{delay}" $delay) -}}
{{- end -}}
{{- if eq (include "streamloop.hasReplayTopic" (list $root $topic)) "true" -}}
{{- $replay := (fromJson (include "streamloop.topicSetting" (list $root $topic "replay_topic_name"))).value -}}
{{- $found = append $found ($replay | replace "{topic}" $topic.name | replace "{group}" $group) -}}
{{- end -}}
{{- toYaml (dict "items" $found) -}}
{{- end -}}
