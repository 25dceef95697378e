{{/* Deadlines, hints when to come back and refusals pass as they are: Envoy retries nothing and sets no time of its own. */}}
{{- define "farrank.envoyConfig" -}}
static_resources:
  listeners:
    - name: calls
      address: {socket_address: {address: {{ .Values.host | quote }}, port_value: {{ .Values.envoy.port }}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: calls
                codec_type: HTTP2
                # A caller's connection is ended kindly now and then, so that new proxies get some.
                common_http_protocol_options: {max_connection_duration: 300s}
                # A health watch says nothing for hours.
                stream_idle_timeout: 0s
                route_config:
                  virtual_hosts:
                    - name: replicas
                      domains: ["*"]
                      routes:
                        - match: {prefix: "/"}
                          route:
                            cluster: replicas
                            timeout: 0s
                            # The caller's own deadline, whatever it is.
                            max_stream_duration: {grpc_timeout_header_max: 0s}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          {{- if .Values.tls.secretName }}
          transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2]
                tls_certificates:
                  - certificate_chain: {filename: /etc/farrank/tls/tls.crt}
                    private_key: {filename: /etc/farrank/tls/tls.key}
          {{- end }}
    # For Kubernetes: whether a replica is healthy. Envoy's own administration stays inside the pod.
    - name: health
      address: {socket_address: {address: {{ .Values.host | quote }}, port_value: 9902}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: health
                route_config: {}
                http_filters:
                  - name: envoy.filters.http.health_check
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck
                      pass_through_mode: false
                      headers: [{name: ":path", string_match: {exact: /ready}}]
                      # Of the replicas in percent: of a hundred, one is enough.
                      cluster_min_healthy_percentages: {replicas: {value: 1}}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: replicas
      type: STRICT_DNS
      connect_timeout: 2s
      lb_policy: LEAST_REQUEST
      # However many replicas are not healthy, they get no calls.
      common_lb_config: {healthy_panic_threshold: {value: 0}}
      load_assignment:
        cluster_name: replicas
        endpoints:
          - lb_endpoints:
              - endpoint:
                  address: {socket_address: {address: {{ include "farrank.replicasHost" . }}, port_value: {{ .Values.ports.grpc }}}}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      health_checks:
        - timeout: 2s
          interval: 1s
          no_traffic_interval: 1s
          unhealthy_threshold: 1
          healthy_threshold: 1
          grpc_health_check: {service_name: {{ include "farrank.service" . }}}
      # Refusing is the replicas' business: they say when to come back.
      circuit_breakers:
        thresholds:
          - {max_connections: 1000000, max_pending_requests: 1000000, max_requests: 1000000}
      {{- if .Values.tls.secretName }}
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            alpn_protocols: [h2]
            validation_context: {trusted_ca: {filename: /etc/farrank/tls/ca.crt}}
      {{- end }}
{{- end -}}
