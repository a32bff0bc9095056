// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CiliumObjects requests what the API server has of Cilium: the image of its agents, of the DaemonSet cilium, and its options, of the
// ConfigMap cilium-config. found is false if one of them does not exist or may not be read. The server answers from memory.
func (w *Watch) CiliumObjects(ctx context.Context) (image string, options map[string]string, found bool, err error) {
	var daemons struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct{ Name, Image string }
				}
			}
		}
	}
	var config struct{ Data map[string]string }
	for _, object := range []struct {
		path string
		into any
	}{
		{"/apis/apps/v1/namespaces/" + metav1.NamespaceSystem + "/daemonsets/cilium", &daemons},
		{"/api/v1/namespaces/" + metav1.NamespaceSystem + "/configmaps/cilium-config", &config},
	} {
		switch err := w.readJSON(ctx, object.path, object.into); {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return "", nil, false, nil
		case err != nil:
			return "", nil, false, fmt.Errorf("reading %s: %w", object.path, err)
		}
	}
	for _, c := range daemons.Spec.Template.Spec.Containers {
		if c.Name == "cilium-agent" {
			image = c.Image
		}
	}
	return image, config.Data, true, nil
}

// readJSON reads an object from the server's memory. Its type need not be one of those that are watched.
func (w *Watch) readJSON(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	left := int64(maxObject)
	text, err := w.clients.core.Verb(http.MethodGet).AbsPath(path).Param("resourceVersion", "0").SetHeader("Accept", "application/json").
		DoRaw(context.WithValue(ctx, listBudget{}, &left))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
