{{- define "rlock.labels" -}}
{app.kubernetes.io/name: rlock, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}

{{- /* Clients of one server and of a quorum, or of quorums of different sizes, would not exclude each other. So the name differs:
     it is fixed in a StatefulSet, and what clients of the other kind look for does not exist. */}}
{{- define "rlock.service" -}}
{{ .Release.Name }}{{ if gt (int .Values.replicas) 1 }}-of-{{ .Values.replicas }}{{ end }}
{{- end }}

{{- define "rlock.secret" -}}
{{ .Values.access.existingSecret | default .Release.Name }}
{{- end }}

{{- define "rlock.tools" -}}
{{ .Values.tools.image }}:{{ .Values.tools.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "rlock.container" -}}
{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, readOnlyRootFilesystem: true}
{{- end }}

{{- define "rlock.grace-ms" -}}
{{ get .Values.server.settings "rlock.startup-grace-ms" | default 0 }}
{{- end }}

{{- /* How redis-cli reaches the server from its own pod, where nobody is between them: no name is checked. */}}
{{- define "rlock.cli" -}}
{{ .Values.server.program }}-cli
{{- if .Values.access.users }}, --user, exporter{{ end }}
{{- if .Values.tls.existingSecret }}, --tls, --insecure{{ end }}
{{- if .Values.tls.clientCertificates }}, --cert, /tls/tls.crt, --key, /tls/tls.key{{ end }}
{{- end }}

{{- /* What values.schema.json cannot say with its reason. */}}
{{- define "rlock.check" -}}
{{- range $name := keys .Values.server.settings | sortAlpha }}
{{- if regexMatch "^(aclfile|append(only|fsync|dirname|filename)|bind.*|cluster-.*|daemonize|dbfilename|dir|include|loadmodule|master(auth|user)|maxmemory-policy|no-appendfsync-on-rewrite|port|protected-mode|rename-command|replicaof|requirepass|save|slaveof|tls-.*|unixsocket.*|user)$" $name }}
{{- fail (printf "server.settings may not have %s: other values of the chart decide that, or a lock would not be safe with another value" $name) }}
{{- end }}
{{- end }}
{{- if and (not .Values.persistence.enabled) (eq (include "rlock.grace-ms" . | int64) 0) }}
{{- fail "persistence.enabled is false, so server.settings needs rlock.startup-grace-ms of at least the longest lease: a restarted server would grant locks that others hold" }}
{{- end }}
{{- if and .Values.tls.clientCertificates (not .Values.tls.existingSecret) }}
{{- fail "tls.clientCertificates needs tls.existingSecret: without TLS no client shows a certificate" }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (not .Values.exporter.enabled) }}
{{- fail "serviceMonitor.enabled needs exporter.enabled: there is nothing to scrape" }}
{{- end }}
{{- end }}
