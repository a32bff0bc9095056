// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// HTTP makes a client of the API server for who asks it for little, with the credentials of a kubeconfig, or of the pod's service
// account where it is empty, and gives the server's URL. It opens no connection. A request ends with its context.
func NewHTTPClient(kubeconfig, userAgent string) (*http.Client, *url.URL, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	cfg.UserAgent = userAgent
	cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	client.Transport = cancelTripper{client.Transport, new(atomic.Int64)}
	server, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the URL of the API server: %w", err)
	}
	return client, server, nil
}
