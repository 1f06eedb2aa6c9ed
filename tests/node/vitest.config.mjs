export default {
  test: { include: ["conformance.test.mjs"], testTimeout: 60000, hookTimeout: 60000 },
};
