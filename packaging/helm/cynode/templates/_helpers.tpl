{{- define "cynode.labels" -}}
app.kubernetes.io/name: cynode
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "cynode.selector" -}}
app.kubernetes.io/name: cynode
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "cynode.image" -}}
{{ .Values.image.server }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "cynode.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "cynode.scheme" -}}
{{ if .Values.tls.secretName }}https{{ else }}http{{ end }}
{{- end }}
{{- /* Arguments with which a program of the pod trusts the internal port and shows a certificate, if that port is open to nodes. */}}
{{- define "cynode.trust" -}}
{{- $program := index . 1 }}
{{- if (index . 0).Values.service.internal.enabled -}}
, --orchestrator, "https://127.0.0.1:12082", --ca-file, /secrets/{{ $program }}/ca.pem, --certificate-file, /secrets/{{ $program }}/client.pem, --key-file, /secrets/{{ $program }}/client.key
{{- end }}
{{- end }}
