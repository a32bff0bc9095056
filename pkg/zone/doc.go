// SPDX-License-Identifier: Apache-2.0

// Package zone answers the names of a Kubernetes cluster from slim records of its objects.
package zone
