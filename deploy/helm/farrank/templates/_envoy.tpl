{{/*
Envoy's configuration, for the chart and for deploy/envoy/envoy.yaml (deploy/envoy/write_envoy.py) alike. It takes `host`
and `port`, where Envoy listens; `addresses` of replicas, each with `host` and `port`; `service`, their name in the health
service; `maxRequests`, `connectionSeconds` and `choices` as values.yaml explains them; and `tls`, which may be missing: the
folder `files` that holds certificate.yaml and authority.yaml, and the `serverName` that replicas' certificates must hold,
which may be empty.
*/}}
{{- define "farrank.envoyConfig" -}}
# Envoy asks for names before it reads a certificate from a file.
node: {id: farrank, cluster: farrank}
admin:
  # Loopback alone: a caller that reaches it could end the proxy.
  address: {socket_address: {address: 127.0.0.1, port_value: 9901}}
static_resources:
  listeners:
    - name: calls
      address: {socket_address: {address: {{ .host | quote }}, port_value: {{ .port }}}}
      # Envoy holds at most this much of a call. A larger request is not tried at another replica.
      per_connection_buffer_limit_bytes: 1048576
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: calls
                codec_type: HTTP2
                # At this age a connection takes no new calls, and ends when its calls do: callers find new proxies, and
                # leave one that Kubernetes' services have forgotten.
                common_http_protocol_options: {max_connection_duration: {{ .connectionSeconds }}s}
                # Calls that a caller sends before it hears of that are answered for this long.
                drain_timeout: 5s
                # One caller's connection holds at most this many calls and bytes. gRPC clients queue the rest.
                http2_protocol_options:
                  max_concurrent_streams: 1024
                  initial_stream_window_size: 1048576
                  initial_connection_window_size: 4194304
                # A health watch is silent for hours.
                stream_idle_timeout: 0s
                route_config:
                  virtual_hosts:
                    - name: replicas
                      domains: ["*"]
                      # A call changes nothing, so another replica may answer it. Envoy tries again where a replica could
                      # not be reached, refused the stream, ended the connection before it answered, or answered
                      # UNAVAILABLE and nothing else. RESOURCE_EXHAUSTED goes to the caller, with its hint.
                      retry_policy:
                        retry_on: connect-failure,refused-stream,reset,unavailable
                        num_retries: 3
                        # A dead replica has the fewest calls, so that most draws find it again.
                        host_selection_retry_max_attempts: 50
                        retry_host_predicate:
                          - name: envoy.retry_host_predicates.previous_hosts
                            typed_config:
                              "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
                      routes:
                        # A health check reaches a replica once it is whole: half-sent ones would take the places of
                        # Envoy's own checks there.
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
                            # Envoy's own limit would be 15 s. The caller's deadline holds instead and reaches the replica.
                            timeout: 0s
                            max_stream_duration: {grpc_timeout_header_max: 0s}
                http_filters:
                  - name: envoy.filters.http.buffer
                    # Only routes that ask for it.
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
    # For Kubernetes and Prometheus: two pages of the administration, to read.
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
      # The one with the fewest calls in flight, of this many drawn at random.
      lb_policy: LEAST_REQUEST
      least_request_lb_config: {choice_count: {{ .choices }}}
      # A replica that is not healthy gets no calls, however many are not. Where none is healthy, all get calls: the
      # checks are then more likely wrong than every replica, and a replica's refusal says why.
      common_lb_config: {healthy_panic_threshold: {value: 1}}
      # A replica that cannot be connected to gets no calls for a second, before its health check notices.
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
          # One check that a busy replica missed says nothing.
          unhealthy_threshold: 3
          healthy_threshold: 1
      # Replicas refuse first, and say when to come back. This bounds what a proxy holds when they do not answer: more
      # calls are refused with UNAVAILABLE. Retries are at most half of the calls.
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
              # A replica that is silent is left after 5 s, with the calls that it has.
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
The certificate in `folder`, and the file `authority` there that replicas' certificates must come from, each for a file of
its own. Envoy reads both anew when Kubernetes changes the folder.
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
