{{/* Names, labels, units. Numbers and lists travel between templates as text or YAML, since a template returns text. */}}

{{- define "streamloop.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 52 characters: a CronJob's name has no more, and other objects add a suffix. */}}
{{- define "streamloop.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "streamloop.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The two that never change: selectors can't be changed later. */}}
{{- define "streamloop.selectorLabels" -}}
app.kubernetes.io/name: {{ include "streamloop.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "streamloop.labels" -}}
{{- $own := fromYaml (include "streamloop.selectorLabels" .) -}}
{{- $_ := set $own "app.kubernetes.io/version" (.Chart.AppVersion | replace "+" "_") -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "app.kubernetes.io/part-of" "streamloop" -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- toYaml (merge $own .Values.commonLabels) -}}
{{- end -}}

{{/* metadata of an object: (list $ suffix labels annotations) */}}
{{- define "streamloop.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "streamloop.fullname" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- toYaml (mergeOverwrite (fromYaml (include "streamloop.labels" $root)) (index . 2)) | nindent 2 }}
{{- with mergeOverwrite (deepCopy $root.Values.commonAnnotations) (index . 3) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "streamloop.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "streamloop.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "streamloop.image" -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry -}}
{{- $name := .Values.image.repository -}}
{{- if $registry -}}{{- $name = printf "%s/%s" $registry $name -}}{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "streamloop.imagePullSecrets" -}}
{{- $found := list -}}
{{- range concat .Values.imagePullSecrets .Values.global.imagePullSecrets -}}
{{- $found = append $found (kindIs "string" . | ternary (dict "name" .) .) -}}
{{- end -}}
{{- with $found -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* What was made from the settings model: defaults in force when nothing is set, bounds of the end, what is a secret. */}}
{{- define "streamloop.model" -}}
{{- .Files.Get "files/model.yaml" -}}
{{- end -}}

{{/* Seconds of a duration as streamloop reads it: a number, 500ms, 1h30m, 14d. */}}
{{- define "streamloop.seconds" -}}
{{- $text := toString . | trim -}}
{{- if regexMatch "^[0-9.]+([eE][+-]?[0-9]+)?$" $text -}}
{{- printf "%.3f" (float64 $text) -}}
{{- else -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(ms|s|m|h|d)" $text -1 -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = addf $sum (mulf (float64 (trimSuffix $unit .)) (get (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0) $unit)) -}}
{{- end -}}
{{- printf "%.3f" $sum -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a size as streamloop reads it, or of a Kubernetes quantity: a number, 64MiB, 64Mi, 1GB, 1G. */}}
{{- define "streamloop.bytes" -}}
{{- $text := toString . | trim -}}
{{- $number := regexFind "^[0-9.]+([eE][+-]?[0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text | trim | lower | trimSuffix "b" -}}
{{- $factors := dict "" 1.0 "k" 1e3 "m" 1e6 "g" 1e9 "t" 1e12 "p" 1e15 "ki" 1024.0 "mi" 1048576.0 "gi" 1073741824.0 "ti" 1099511627776.0 "pi" 1125899906842624.0 -}}
{{- printf "%.0f" (mulf (float64 $number) (get $factors $unit)) -}}
{{- end -}}

{{/* A duration as it stands in topic names: the largest unit that divides it. Takes seconds. */}}
{{- define "streamloop.showDuration" -}}
{{- $ms := int64 (round (mulf (float64 .) 1000.0) 0) -}}
{{- $shown := "" -}}
{{- range list (list "d" 86400000) (list "h" 3600000) (list "m" 60000) (list "s" 1000) -}}
{{- if and (not $shown) (gt $ms 0) (eq (mod $ms (index . 1)) 0) -}}
{{- $shown = printf "%d%s" (div $ms (index . 1)) (index . 0) -}}
{{- end -}}
{{- end -}}
{{- default (printf "%dms" $ms) $shown -}}
{{- end -}}

{{/* The items of a list setting, which may be a list or a text with commas: as YAML under `items`. */}}
{{- define "streamloop.items" -}}
{{- $items := list -}}
{{- if kindIs "string" . -}}
{{- if and . (ne (lower (trim .)) "none") -}}
{{- if hasPrefix "[" (trim .) -}}{{- $items = fromJsonArray . -}}
{{- else -}}
{{- range splitList "," . -}}{{- if trim . -}}{{- $items = append $items (trim .) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- $items = . -}}
{{- else if not (kindIs "invalid" .) -}}
{{- $items = list . -}}
{{- end -}}
{{- toYaml (dict "items" $items) -}}
{{- end -}}

{{/* A consumer's name as its settings are found by: letter case and punctuation do not matter. */}}
{{- define "streamloop.consumerKey" -}}
{{- regexReplaceAll "[^a-z0-9]+" (lower .) "_" -}}
{{- end -}}
