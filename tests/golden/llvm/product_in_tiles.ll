source_filename = "product_0"

declare i32 @tfb_allow_tiles()
declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tdpbssd(i8, i8, i8)
declare void @llvm.x86.tdpbusd(i8, i8, i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.tilezero(i8)

@product_0.region0.tiles = internal constant [64 x i8] c"\01\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\40\00\40\00\20\00\40\00\40\00\40\00\40\00\40\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\0a\0a\0a\08\08\08\08\08\00\00\00\00\00\00\00\00", align 64
define internal void @product_0.region0(ptr noalias readonly align 64 %b0, ptr noalias readonly align 64 %b1, ptr noalias align 64 %b2, i64 %begin, i64 %end) nounwind "no-trapping-math"="true" {
entry:
  call void @llvm.x86.ldtilecfg(ptr @product_0.region0.tiles)
  %local3 = alloca [320 x i32], align 64
  br label %loop1
loop1:
  %v2 = phi i64 [ 0, %entry ], [ %v2.next, %loop1.latch ]
  %v4 = mul i64 %v2, 80
  %v5 = getelementptr inbounds i32, ptr %b0, i64 %v4
  %v9 = mul i64 %v2, 320
  %v10 = getelementptr inbounds i32, ptr %b2, i64 %v9
  call void @llvm.x86.tilezero(i8 0)
  call void @llvm.x86.tilezero(i8 1)
  call void @llvm.x86.tileloadd64(i8 2, ptr %v5, i64 32)
  call void @llvm.x86.tileloadd64(i8 3, ptr %b1, i64 128)
  call void @llvm.x86.tdpbusd(i8 0, i8 2, i8 3)
  %v6 = getelementptr inbounds i32, ptr %b1, i64 16
  call void @llvm.x86.tileloadd64(i8 4, ptr %v6, i64 128)
  call void @llvm.x86.tdpbusd(i8 1, i8 2, i8 4)
  call void @llvm.x86.tilestored64(i8 0, ptr %local3, i64 128)
  %v7 = getelementptr inbounds i32, ptr %local3, i64 16
  call void @llvm.x86.tilestored64(i8 1, ptr %v7, i64 128)
  %v8 = load <8 x i32>, ptr %local3, align 64
  store <8 x i32> %v8, ptr %v10, align 64
  %v11 = getelementptr inbounds i32, ptr %local3, i64 8
  %v12 = load <8 x i32>, ptr %v11, align 32
  %v13 = getelementptr inbounds i32, ptr %v10, i64 8
  store <8 x i32> %v12, ptr %v13, align 32
  %v14 = load <8 x i32>, ptr %v7, align 64
  %v15 = getelementptr inbounds i32, ptr %v10, i64 16
  store <8 x i32> %v14, ptr %v15, align 64
  %v16 = getelementptr inbounds i32, ptr %local3, i64 24
  %v17 = load <8 x i32>, ptr %v16, align 32
  %v18 = getelementptr inbounds i32, ptr %v10, i64 24
  store <8 x i32> %v17, ptr %v18, align 32
  %v19 = getelementptr inbounds i32, ptr %local3, i64 32
  %v20 = load <8 x i32>, ptr %v19, align 64
  %v21 = getelementptr inbounds i32, ptr %v10, i64 32
  store <8 x i32> %v20, ptr %v21, align 64
  %v22 = getelementptr inbounds i32, ptr %local3, i64 40
  %v23 = load <8 x i32>, ptr %v22, align 32
  %v24 = getelementptr inbounds i32, ptr %v10, i64 40
  store <8 x i32> %v23, ptr %v24, align 32
  %v25 = getelementptr inbounds i32, ptr %local3, i64 48
  %v26 = load <8 x i32>, ptr %v25, align 64
  %v27 = getelementptr inbounds i32, ptr %v10, i64 48
  store <8 x i32> %v26, ptr %v27, align 64
  %v28 = getelementptr inbounds i32, ptr %local3, i64 56
  %v29 = load <8 x i32>, ptr %v28, align 32
  %v30 = getelementptr inbounds i32, ptr %v10, i64 56
  store <8 x i32> %v29, ptr %v30, align 32
  %v31 = getelementptr inbounds i32, ptr %local3, i64 64
  %v32 = load <8 x i32>, ptr %v31, align 64
  %v33 = getelementptr inbounds i32, ptr %v10, i64 64
  store <8 x i32> %v32, ptr %v33, align 64
  %v34 = getelementptr inbounds i32, ptr %local3, i64 72
  %v35 = load <8 x i32>, ptr %v34, align 32
  %v36 = getelementptr inbounds i32, ptr %v10, i64 72
  store <8 x i32> %v35, ptr %v36, align 32
  %v37 = getelementptr inbounds i32, ptr %local3, i64 80
  %v38 = load <8 x i32>, ptr %v37, align 64
  %v39 = getelementptr inbounds i32, ptr %v10, i64 80
  store <8 x i32> %v38, ptr %v39, align 64
  %v40 = getelementptr inbounds i32, ptr %local3, i64 88
  %v41 = load <8 x i32>, ptr %v40, align 32
  %v42 = getelementptr inbounds i32, ptr %v10, i64 88
  store <8 x i32> %v41, ptr %v42, align 32
  %v43 = getelementptr inbounds i32, ptr %local3, i64 96
  %v44 = load <8 x i32>, ptr %v43, align 64
  %v45 = getelementptr inbounds i32, ptr %v10, i64 96
  store <8 x i32> %v44, ptr %v45, align 64
  %v46 = getelementptr inbounds i32, ptr %local3, i64 104
  %v47 = load <8 x i32>, ptr %v46, align 32
  %v48 = getelementptr inbounds i32, ptr %v10, i64 104
  store <8 x i32> %v47, ptr %v48, align 32
  %v49 = getelementptr inbounds i32, ptr %local3, i64 112
  %v50 = load <8 x i32>, ptr %v49, align 64
  %v51 = getelementptr inbounds i32, ptr %v10, i64 112
  store <8 x i32> %v50, ptr %v51, align 64
  %v52 = getelementptr inbounds i32, ptr %local3, i64 120
  %v53 = load <8 x i32>, ptr %v52, align 32
  %v54 = getelementptr inbounds i32, ptr %v10, i64 120
  store <8 x i32> %v53, ptr %v54, align 32
  %v55 = getelementptr inbounds i32, ptr %local3, i64 128
  %v56 = load <8 x i32>, ptr %v55, align 64
  %v57 = getelementptr inbounds i32, ptr %v10, i64 128
  store <8 x i32> %v56, ptr %v57, align 64
  %v58 = getelementptr inbounds i32, ptr %local3, i64 136
  %v59 = load <8 x i32>, ptr %v58, align 32
  %v60 = getelementptr inbounds i32, ptr %v10, i64 136
  store <8 x i32> %v59, ptr %v60, align 32
  %v61 = getelementptr inbounds i32, ptr %local3, i64 144
  %v62 = load <8 x i32>, ptr %v61, align 64
  %v63 = getelementptr inbounds i32, ptr %v10, i64 144
  store <8 x i32> %v62, ptr %v63, align 64
  %v64 = getelementptr inbounds i32, ptr %local3, i64 152
  %v65 = load <8 x i32>, ptr %v64, align 32
  %v66 = getelementptr inbounds i32, ptr %v10, i64 152
  store <8 x i32> %v65, ptr %v66, align 32
  %v67 = getelementptr inbounds i32, ptr %local3, i64 160
  %v68 = load <8 x i32>, ptr %v67, align 64
  %v69 = getelementptr inbounds i32, ptr %v10, i64 160
  store <8 x i32> %v68, ptr %v69, align 64
  %v70 = getelementptr inbounds i32, ptr %local3, i64 168
  %v71 = load <8 x i32>, ptr %v70, align 32
  %v72 = getelementptr inbounds i32, ptr %v10, i64 168
  store <8 x i32> %v71, ptr %v72, align 32
  %v73 = getelementptr inbounds i32, ptr %local3, i64 176
  %v74 = load <8 x i32>, ptr %v73, align 64
  %v75 = getelementptr inbounds i32, ptr %v10, i64 176
  store <8 x i32> %v74, ptr %v75, align 64
  %v76 = getelementptr inbounds i32, ptr %local3, i64 184
  %v77 = load <8 x i32>, ptr %v76, align 32
  %v78 = getelementptr inbounds i32, ptr %v10, i64 184
  store <8 x i32> %v77, ptr %v78, align 32
  %v79 = getelementptr inbounds i32, ptr %local3, i64 192
  %v80 = load <8 x i32>, ptr %v79, align 64
  %v81 = getelementptr inbounds i32, ptr %v10, i64 192
  store <8 x i32> %v80, ptr %v81, align 64
  %v82 = getelementptr inbounds i32, ptr %local3, i64 200
  %v83 = load <8 x i32>, ptr %v82, align 32
  %v84 = getelementptr inbounds i32, ptr %v10, i64 200
  store <8 x i32> %v83, ptr %v84, align 32
  %v85 = getelementptr inbounds i32, ptr %local3, i64 208
  %v86 = load <8 x i32>, ptr %v85, align 64
  %v87 = getelementptr inbounds i32, ptr %v10, i64 208
  store <8 x i32> %v86, ptr %v87, align 64
  %v88 = getelementptr inbounds i32, ptr %local3, i64 216
  %v89 = load <8 x i32>, ptr %v88, align 32
  %v90 = getelementptr inbounds i32, ptr %v10, i64 216
  store <8 x i32> %v89, ptr %v90, align 32
  %v91 = getelementptr inbounds i32, ptr %local3, i64 224
  %v92 = load <8 x i32>, ptr %v91, align 64
  %v93 = getelementptr inbounds i32, ptr %v10, i64 224
  store <8 x i32> %v92, ptr %v93, align 64
  %v94 = getelementptr inbounds i32, ptr %local3, i64 232
  %v95 = load <8 x i32>, ptr %v94, align 32
  %v96 = getelementptr inbounds i32, ptr %v10, i64 232
  store <8 x i32> %v95, ptr %v96, align 32
  %v97 = getelementptr inbounds i32, ptr %local3, i64 240
  %v98 = load <8 x i32>, ptr %v97, align 64
  %v99 = getelementptr inbounds i32, ptr %v10, i64 240
  store <8 x i32> %v98, ptr %v99, align 64
  %v100 = getelementptr inbounds i32, ptr %local3, i64 248
  %v101 = load <8 x i32>, ptr %v100, align 32
  %v102 = getelementptr inbounds i32, ptr %v10, i64 248
  store <8 x i32> %v101, ptr %v102, align 32
  %v103 = getelementptr inbounds i32, ptr %local3, i64 256
  %v104 = load <8 x i32>, ptr %v103, align 64
  %v105 = getelementptr inbounds i32, ptr %v10, i64 256
  store <8 x i32> %v104, ptr %v105, align 64
  %v106 = getelementptr inbounds i32, ptr %local3, i64 264
  %v107 = load <8 x i32>, ptr %v106, align 32
  %v108 = getelementptr inbounds i32, ptr %v10, i64 264
  store <8 x i32> %v107, ptr %v108, align 32
  %v109 = getelementptr inbounds i32, ptr %local3, i64 272
  %v110 = load <8 x i32>, ptr %v109, align 64
  %v111 = getelementptr inbounds i32, ptr %v10, i64 272
  store <8 x i32> %v110, ptr %v111, align 64
  %v112 = getelementptr inbounds i32, ptr %local3, i64 280
  %v113 = load <8 x i32>, ptr %v112, align 32
  %v114 = getelementptr inbounds i32, ptr %v10, i64 280
  store <8 x i32> %v113, ptr %v114, align 32
  %v115 = getelementptr inbounds i32, ptr %local3, i64 288
  %v116 = load <8 x i32>, ptr %v115, align 64
  %v117 = getelementptr inbounds i32, ptr %v10, i64 288
  store <8 x i32> %v116, ptr %v117, align 64
  %v118 = getelementptr inbounds i32, ptr %local3, i64 296
  %v119 = load <8 x i32>, ptr %v118, align 32
  %v120 = getelementptr inbounds i32, ptr %v10, i64 296
  store <8 x i32> %v119, ptr %v120, align 32
  %v121 = getelementptr inbounds i32, ptr %local3, i64 304
  %v122 = load <8 x i32>, ptr %v121, align 64
  %v123 = getelementptr inbounds i32, ptr %v10, i64 304
  store <8 x i32> %v122, ptr %v123, align 64
  %v124 = getelementptr inbounds i32, ptr %local3, i64 312
  %v125 = load <8 x i32>, ptr %v124, align 32
  %v126 = getelementptr inbounds i32, ptr %v10, i64 312
  store <8 x i32> %v125, ptr %v126, align 32
  br label %loop1.latch
loop1.latch:
  %v2.next = add nuw nsw i64 %v2, 1
  %v2.more = icmp slt i64 %v2.next, 2
  br i1 %v2.more, label %loop1, label %loop1.done
loop1.done:
  call void @llvm.x86.tilerelease()
  ret void
}

define hidden void @product_0.region0.entry(ptr %buffers, i64 %begin, i64 %end) nounwind {
entry:
  %slot0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer1 = load ptr, ptr %slot1, align 8
  %slot2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer2 = load ptr, ptr %slot2, align 8
  call void @product_0.region0(ptr %buffer0, ptr %buffer1, ptr %buffer2, i64 %begin, i64 %end)
  ret void
}

define i32 @product_0(ptr %buffers, ptr %workspace, ptr %pool) nounwind {
entry:
  %closure = alloca [3 x ptr], align 8
  %allowed = call i32 @tfb_allow_tiles()
  %allowed.bad = icmp ne i32 %allowed, 0
  br i1 %allowed.bad, label %allowed.stop, label %begin
allowed.stop:
  ret i32 %allowed
begin:
  %argument0.0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0.0 = load ptr, ptr %argument0.0, align 8
  %slot0.0 = getelementptr inbounds ptr, ptr %closure, i64 0
  store ptr %buffer0.0, ptr %slot0.0, align 8
  %argument0.1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer0.1 = load ptr, ptr %argument0.1, align 8
  %slot0.1 = getelementptr inbounds ptr, ptr %closure, i64 1
  store ptr %buffer0.1, ptr %slot0.1, align 8
  %argument0.2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer0.2 = load ptr, ptr %argument0.2, align 8
  %slot0.2 = getelementptr inbounds ptr, ptr %closure, i64 2
  store ptr %buffer0.2, ptr %slot0.2, align 8
  call void @product_0.region0.entry(ptr %closure, i64 0, i64 1)
  ret i32 0
}
