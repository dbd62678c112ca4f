{{- define "conduit.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "conduit.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "conduit.labels" -}}
{{ include "conduit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "conduit.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "conduit.secured" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "conduit.check" -}}
{{- if and (eq .Values.state.kind "volume") (gt (int .Values.replicas) 1) }}
{{- fail "a state on a volume has one server: set replicas to 1, or keep the state in PostgreSQL (state.kind: postgres)" }}
{{- end }}
{{- if and (eq .Values.state.kind "postgres") (not .Values.state.postgres.address) }}
{{- fail "state.kind is postgres: give state.postgres.address, as postgresql://user@host/database" }}
{{- end }}
{{- end }}

{{- define "conduit.pod" -}}
metadata:
  labels: {{- include "conduit.selector" . | nindent 4 }}
  annotations:
    # Files of a volume are not followed: a change of a pipeline restarts the server, one pod after the other.
    checksum/pipelines: {{ toYaml .Values.pipelines | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- with .Values.serviceAccount.name }}
  serviceAccountName: {{ . }}
  {{- end }}
  automountServiceAccountToken: false
  # Longer than the stop of the server, which delivers what has been read.
  terminationGracePeriodSeconds: {{ add .Values.stopSeconds 15 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  initContainers:
    # A secret is mounted with rights for the group. The server takes tokens only from a file of its user alone.
    - name: tokens
      image: {{ include "conduit.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - /usr/bin/python3.11
        - -c
        - import os, shutil; os.umask(0o077); shutil.copyfile("/secret/tokens", "/run/conduit/tokens")
      securityContext: {{- include "conduit.secured" . | nindent 8 }}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - { name: secret, mountPath: /secret, readOnly: true }
        - { name: tokens, mountPath: /run/conduit }
  containers:
    - name: server
      image: {{ include "conduit.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --pipelines={{ .Values.pipelinesFolder }}
        {{- if eq .Values.state.kind "postgres" }}
        - --state={{ .Values.state.postgres.address }}
        {{- else }}
        - --state=/state/data
        {{- end }}
        - --host=0.0.0.0
        - --port=8080
        - --token-file=/run/conduit/tokens
        - --allow-host={{ include "conduit.name" . }}
        - --allow-host={{ include "conduit.name" . }}.{{ .Release.Namespace }}
        - --allow-host={{ include "conduit.name" . }}.{{ .Release.Namespace }}.svc
        - --allow-host={{ include "conduit.name" . }}.{{ .Release.Namespace }}.svc.cluster.local
        {{- range .Values.allowHosts }}
        - --allow-host={{ . }}
        {{- end }}
        - --processes={{ .Values.processes }}
        - --stop-timeout={{ .Values.stopSeconds }}
        - --log-format=json
        {{- with .Values.extraArgs }}{{ toYaml . | nindent 8 }}{{ end }}
      env:
        {{- with .Values.state.postgres.passwordSecret }}
        {{- if and (eq $.Values.state.kind "postgres") .name }}
        - name: PGPASSWORD
          valueFrom:
            secretKeyRef: { name: {{ .name }}, key: {{ .key }} }
        {{- end }}
        {{- end }}
        {{- with .Values.env }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with .Values.envFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - { name: http, containerPort: 8080 }
      # Until the state is open and the files are read, which may take a while.
      startupProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 5
        failureThreshold: 60
      # Ready when every pipeline was started. Degraded pipelines do not make it unready: others run here.
      readinessProbe:
        httpGet: { path: /readyz, port: http }
        periodSeconds: 5
        timeoutSeconds: 5
      # Five minutes: a database that is away does not come back by a restart of the server.
      livenessProbe:
        httpGet: { path: /healthz, port: http }
        periodSeconds: 15
        timeoutSeconds: 10
        failureThreshold: 20
      securityContext: {{- include "conduit.secured" . | nindent 8 }}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        # One by one: the folder of a ConfigMap can be written to by anybody, and conduit-py runs no code from such a folder.
        {{- range $name, $_ := .Values.pipelines }}
        - { name: pipelines, mountPath: {{ $.Values.pipelinesFolder }}/{{ $name }}, subPath: {{ $name }}, readOnly: true }
        {{- end }}
        - { name: tokens, mountPath: /run/conduit, readOnly: true }
        - { name: tmp, mountPath: /tmp }
        {{- if eq .Values.state.kind "volume" }}
        - { name: state, mountPath: /state }
        {{- end }}
  volumes:
    {{- if .Values.pipelines }}
    - name: pipelines
      configMap: { name: {{ include "conduit.name" . }}, defaultMode: 0444 }
    {{- end }}
    - name: secret
      secret:
        secretName: {{ .Values.tokens.secret }}
        defaultMode: 0440
        items: [{ key: {{ .Values.tokens.key }}, path: tokens }]
    - name: tokens
      emptyDir: { medium: Memory, sizeLimit: 1Mi }
    - name: tmp
      emptyDir: {}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
