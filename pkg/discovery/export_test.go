// SPDX-License-Identifier: Apache-2.0

package discovery

// EndpointsOf is endpointsOf.
var EndpointsOf = endpointsOf
