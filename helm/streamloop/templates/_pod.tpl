{{/* What all pods of the chart have in common, and the pod of a member. */}}

{{/* The command line of a member, as a YAML list. */}}
{{- define "streamloop.args" -}}
{{- if .Values.args -}}
{{- toYaml .Values.args -}}
{{- else -}}
{{- $args := list "run" .Values.app -}}
{{- if has .Values.kind (list "Job" "CronJob") -}}
{{- with .Values.bounds -}}
{{- if .untilEnd -}}{{- $args = append $args "--until-end" -}}{{- end -}}
{{- if .maxMessages -}}{{- $args = concat $args (list "--max-messages" (printf "%d" (int64 .maxMessages))) -}}{{- end -}}
{{- if .maxRuntime -}}{{- $args = concat $args (list "--max-runtime" (toString .maxRuntime)) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}
{{- end -}}

{{/* Mounts of the Secrets that `auth` names. They exist before the release, so hooks may have them, too. */}}
{{- define "streamloop.secretMounts" -}}
{{- range $name := list "sasl" "tls" "tokens" }}
{{- if (get $.Values.auth $name).existingSecret }}
- name: {{ $name }}
  mountPath: /etc/streamloop/secrets/{{ $name }}
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "streamloop.secretVolumes" -}}
{{- with .Values.auth.sasl }}
{{- if .existingSecret }}
- name: sasl
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      - {key: {{ .passwordKey | quote }}, path: password}
{{- end }}
{{- end }}
{{- with .Values.auth.tls }}
{{- if .existingSecret }}
- name: tls
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      {{- range list (list .caKey "ca.crt") (list .certKey "tls.crt") (list .keyKey "tls.key") (list .keyPasswordKey "key-password") }}
      {{- if index . 0 }}
      - {key: {{ index . 0 | quote }}, path: {{ index . 1 }}}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
{{- with .Values.auth.tokens }}
{{- if .existingSecret }}
- name: tokens
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items:
      {{- range list (list .readKey "read") (list .actKey "act") }}
      {{- if index . 0 }}
      - {key: {{ index . 0 | quote }}, path: {{ index . 1 }}}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "streamloop.env" -}}
- name: STREAMLOOP_CONFIG
  value: /etc/streamloop/config/streamloop.yaml
- name: STREAMLOOP_MEMBER
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- with .Values.auth.sasl }}
{{- if and .existingSecret .usernameKey }}
- name: STREAMLOOP_SASL_USERNAME
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .usernameKey | quote }}}}
{{- end }}
{{- end }}
{{- if and (eq .Values.kind "StatefulSet") .Values.statefulSet.staticMembership }}
- name: STREAMLOOP_KAFKA__CONSUMER__GROUP_INSTANCE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- end }}
{{- with .Values.otel }}
{{- if .endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
{{- end }}
{{- if .protocol }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: {{ .protocol | quote }}
{{- end }}
{{- if .headers.existingSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ .headers.existingSecret | quote }}, key: {{ .headers.key | quote }}}}
{{- end }}
{{- end }}
- name: K8S_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: K8S_NAMESPACE_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: K8S_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(K8S_POD_NAME),k8s.namespace.name=$(K8S_NAMESPACE_NAME),k8s.node.name=$(K8S_NODE_NAME)
  {{- range $name, $value := .Values.otel.resourceAttributes }},{{ $name }}={{ $value }}{{ end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* One probe: (list $ path fields) */}}
{{- define "streamloop.probe" -}}
{{- $own := dict "httpGet" (dict "path" (index . 1) "port" "ops") "timeoutSeconds" 5 -}}
{{- toYaml (mergeOverwrite $own (deepCopy (index . 2))) -}}
{{- end -}}

{{/* Fields of the pod's spec that every pod of the chart has. Its account is not among them: hooks run before it exists. */}}
{{- define "streamloop.podBasics" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with include "streamloop.imagePullSecrets" . }}
{{ . }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- tpl (toYaml .) $ | nindent 2 }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The container of a member or of a job like it: (list $ name args-as-YAML configMap-mounted) */}}
{{- define "streamloop.container" -}}
{{- $root := index . 0 -}}
- name: {{ index . 1 }}
  image: {{ include "streamloop.image" $root | quote }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  {{- with $root.Values.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  args:
    {{- index . 2 | nindent 4 }}
  {{- with $root.Values.workingDir }}
  workingDir: {{ . | quote }}
  {{- end }}
  env:
    {{- include "streamloop.env" $root | nindent 4 }}
  {{- with $root.Values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $root.Values.securityContext | nindent 4 }}
  resources:
    {{- toYaml $root.Values.resources | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - {name: config, mountPath: /etc/streamloop/config, readOnly: true}
    - {name: tmp, mountPath: /tmp}
    {{- with include "streamloop.secretMounts" $root | trim }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $root.Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Volumes: (list $ name-of-the-ConfigMap) */}}
{{- define "streamloop.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap: {name: {{ index . 1 }}}
- name: tmp
  emptyDir: {sizeLimit: {{ $root.Values.tmp.sizeLimit }}}
{{- include "streamloop.secretVolumes" $root }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The pod template of a member. */}}
{{- define "streamloop.podTemplate" -}}
{{- $bounded := has .Values.kind (list "Job" "CronJob") -}}
metadata:
  labels:
    {{- toYaml (mergeOverwrite (deepCopy .Values.commonLabels) .Values.podLabels (fromYaml (include "streamloop.selectorLabels" .)) (dict "app.kubernetes.io/version" (.Chart.AppVersion | replace "+" "_"))) | nindent 4 }}
  annotations:
    # The members read their settings once: another checksum rolls them.
    {{- $sums := dict "checksum/config" (include "streamloop.settings" . | sha256sum) }}
    {{- toYaml (mergeOverwrite (deepCopy .Values.commonAnnotations) .Values.podAnnotations $sums) | nindent 4 }}
spec:
  {{- include "streamloop.podBasics" . | nindent 2 }}
  serviceAccountName: {{ include "streamloop.serviceAccountName" . }}
  terminationGracePeriodSeconds: {{ include "streamloop.grace" . }}
  {{- if $bounded }}
  restartPolicy: Never
  {{- else }}
  topologySpreadConstraints:
    {{- if kindIs "slice" .Values.topologySpreadConstraints }}
    {{- tpl (toYaml .Values.topologySpreadConstraints) . | nindent 4 }}
    {{- else }}
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "streamloop.selectorLabels" $ | nindent 10 }}
      {{- if eq $.Values.kind "Deployment" }}
      # Of one version: during a roll-out the old pods do not count.
      matchLabelKeys: [pod-template-hash]
      {{- end }}
    {{- end }}
    {{- end }}
  {{- end }}
  {{- with .Values.initContainers }}
  initContainers:
    {{- tpl (toYaml .) $ | nindent 4 }}
  {{- end }}
  containers:
    {{- include "streamloop.container" (list . "streamloop" (include "streamloop.args" .)) | nindent 4 }}
      {{- $ops := include "streamloop.opsPort" . }}
      {{- $control := include "streamloop.controlPort" . }}
      {{- if or $ops $control }}
      ports:
        {{- with $ops }}
        - {name: ops, containerPort: {{ . }}, protocol: TCP}
        {{- end }}
        {{- with $control }}
        - {name: control, containerPort: {{ . }}, protocol: TCP}
        {{- end }}
      {{- end }}
      {{- with .Values.probes }}
      {{- if .enabled }}
      startupProbe:
        {{- include "streamloop.probe" (list $ "/startup" .startup) | nindent 8 }}
      {{- if not $bounded }}
      readinessProbe:
        {{- include "streamloop.probe" (list $ "/ready" .readiness) | nindent 8 }}
      {{- end }}
      livenessProbe:
        {{- include "streamloop.probe" (list $ "/live" .liveness) | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- with .Values.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- with .Values.extraContainers }}
    {{- tpl (toYaml .) $ | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "streamloop.volumes" (list . (include "streamloop.fullname" .)) | nindent 4 }}
{{- end -}}
