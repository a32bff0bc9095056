// SPDX-License-Identifier: Apache-2.0

// Package manifests tests what folder daemonset holds, rendered by kubectl and helm and applied to a real API server.
package manifests
