{{/*
Envoy's configuration, for the chart and for deploy/envoy/envoy.yaml (deploy/envoy/write_envoy.py). Its parameters are: `host`
and `port`, on which Envoy listens; `addresses` of replicas, each with `host` and `port`; `service`, the replicas' name in the
health service; `maxRequests`, `connectionSeconds` and `choices`, as values.yaml explains them; and `tls`, which may be
missing. `tls` has the folder `files` with certificate.yaml and authority.yaml, and the `serverName` that replicas'
certificates must contain, which may be empty.
*/}}
{{- define "farrank.envoyConfig" -}}
# Envoy requires these names before it reads a certificate from a file.
node: {id: farrank, cluster: farrank}
admin:
  # Loopback only: a caller that reaches this address could end the proxy.
  address: {socket_address: {address: 127.0.0.1, port_value: 9901}}
static_resources:
  listeners:
    - name: calls
      address: {socket_address: {address: {{ .host | quote }}, port_value: {{ .port }}}}
      # Envoy buffers at most this much of a call. It does not retry a larger request at another replica.
      per_connection_buffer_limit_bytes: 1048576
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: calls
                codec_type: HTTP2
                # At this age a connection takes no new calls, and closes when its calls end. Callers thus find new proxies,
                # and leave a proxy that is no longer in its Kubernetes service.
                common_http_protocol_options: {max_connection_duration: {{ .connectionSeconds }}s}
                # For this long Envoy answers calls that a caller sends before it learns that the connection closes.
                drain_timeout: 5s
                # These are the most calls and bytes of one connection. gRPC clients queue the rest.
                http2_protocol_options:
                  max_concurrent_streams: 1024
                  initial_stream_window_size: 1048576
                  initial_connection_window_size: 4194304
                # A health watch can be silent for hours.
                stream_idle_timeout: 0s
                route_config:
                  virtual_hosts:
                    - name: replicas
                      domains: ["*"]
                      # A call changes nothing, so another replica may answer it. Envoy retries if a replica cannot be
                      # reached, refuses the stream, closes the connection before it answers, or answers only
                      # UNAVAILABLE. RESOURCE_EXHAUSTED goes to the caller, with the time to retry.
                      retry_policy:
                        retry_on: connect-failure,refused-stream,reset,unavailable
                        num_retries: 3
                        # A dead replica has the fewest calls, so most draws would find it again.
                        host_selection_retry_max_attempts: 50
                        retry_host_predicate:
                          - name: envoy.retry_host_predicates.previous_hosts
                            typed_config:
                              "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
                      routes:
                        # Envoy passes a health check on only when it is complete. Half-sent ones would take up the
                        # replica's room for Envoy's own checks.
                        - match: {path: /grpc.health.v1.Health/Check}
                          route:
                            cluster: replicas
                            timeout: 5s
                            max_stream_duration: {max_stream_duration: 10s}
                          typed_per_filter_config:
                            envoy.filters.http.buffer:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.BufferPerRoute
                              buffer: {max_request_bytes: 4096}
                        - match: {prefix: "/"}
                          route:
                            cluster: replicas
                            # Envoy's default timeout is 15 s. The caller's deadline applies instead, and Envoy passes it on.
                            timeout: 0s
                            max_stream_duration: {grpc_timeout_header_max: 0s}
                http_filters:
                  - name: envoy.filters.http.buffer
                    # Only for routes that enable it.
                    disabled: true
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer
                      max_request_bytes: 4096
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          {{- with .tls }}
          transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2]
                tls_certificate_sds_secret_configs:
                  - name: certificate
                    sds_config: {path_config_source: {path: {{ .files }}/certificate.yaml}}
          {{- end }}
    # Kubernetes and Prometheus may read these two pages of Envoy's administration interface.
    - name: status
      address: {socket_address: {address: {{ .host | quote }}, port_value: 9902}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: status
                route_config:
                  virtual_hosts:
                    - name: status
                      domains: ["*"]
                      routes:
                        - match: {path: /ready, headers: [{name: ":method", string_match: {exact: GET}}]}
                          route: {cluster: administration}
                        - match: {path: /metrics, headers: [{name: ":method", string_match: {exact: GET}}]}
                          route: {cluster: administration, prefix_rewrite: /stats/prometheus}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: administration
      type: STATIC
      load_assignment:
        cluster_name: administration
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}
    - name: replicas
      type: STRICT_DNS
      connect_timeout: 2s
      # Envoy draws this many replicas at random and takes the one with the fewest calls in flight.
      lb_policy: LEAST_REQUEST
      least_request_lb_config: {choice_count: {{ .choices }}}
      # An unhealthy replica gets no calls, however many are unhealthy. If none is healthy, all get calls: wrong checks are
      # then more likely than a failure of every replica, and a replica's refusal gives the reason.
      common_lb_config: {healthy_panic_threshold: {value: 1}}
      # A replica that refuses connections gets no calls for a second. Its health check would notice later.
      outlier_detection:
        split_external_local_origin_errors: true
        consecutive_local_origin_failure: 1
        enforcing_consecutive_local_origin_failure: 100
        enforcing_local_origin_success_rate: 0
        enforcing_consecutive_5xx: 0
        enforcing_consecutive_gateway_failure: 0
        enforcing_success_rate: 0
        base_ejection_time: 1s
        max_ejection_percent: 100
      health_checks:
        - grpc_health_check: {service_name: {{ .service }}}
          interval: 0.5s
          interval_jitter_percent: 20
          no_traffic_interval: 0.5s
          timeout: 1s
          # A busy replica may miss one check.
          unhealthy_threshold: 3
          healthy_threshold: 1
      # Replicas refuse calls first, and say when to retry. These limits bound the calls that a proxy holds when replicas do
      # not answer: Envoy refuses further calls with UNAVAILABLE. Retries are at most half of the calls.
      circuit_breakers:
        thresholds:
          - max_connections: 65536
            max_pending_requests: {{ .maxRequests }}
            max_requests: {{ .maxRequests }}
            retry_budget: {budget_percent: {value: 50}, min_retry_concurrency: 32}
            track_remaining: true
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config:
            http2_protocol_options:
              # Envoy gives up a silent replica after 5 s, together with the calls sent to it.
              connection_keepalive: {interval: 2s, timeout: 3s}
      {{- with .tls }}
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          {{- with .serverName }}
          sni: {{ . | quote }}
          {{- end }}
          common_tls_context:
            alpn_protocols: [h2]
            {{- if .serverName }}
            combined_validation_context:
              default_validation_context:
                match_typed_subject_alt_names:
                  - {san_type: DNS, matcher: {exact: {{ .serverName | quote }}}}
              validation_context_sds_secret_config:
                name: authority
                sds_config: {path_config_source: {path: {{ .files }}/authority.yaml}}
            {{- else }}
            validation_context_sds_secret_config:
              name: authority
              sds_config: {path_config_source: {path: {{ .files }}/authority.yaml}}
            {{- end }}
      {{- end }}
      load_assignment:
        cluster_name: replicas
        endpoints:
          - lb_endpoints:
              {{- range .addresses }}
              - endpoint: {address: {socket_address: {address: {{ .host }}, port_value: {{ .port }}}}}
              {{- end }}
{{- end -}}

{{/*
The next two templates each make a file: the certificate in `folder`, and the file `authority` there, which must have issued
the replicas' certificates. Envoy reads both again when Kubernetes changes the folder.
*/}}
{{- define "farrank.envoyCertificate" -}}
resources:
  - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: certificate
    tls_certificate:
      certificate_chain: {filename: {{ .folder }}/tls.crt}
      private_key: {filename: {{ .folder }}/tls.key}
      watched_directory: {path: {{ .folder }}}
{{- end -}}

{{- define "farrank.envoyAuthority" -}}
resources:
  - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: authority
    validation_context:
      trusted_ca: {filename: {{ .folder }}/{{ .authority }}}
      watched_directory: {path: {{ .folder }}}
{{- end -}}
